"""RDMA cards of this machine, their memory registrations and queue pairs, through pyverbs, which is imported only when used.

Debian 12's pyverbs has its constants in `enums`, that of rdma-core 59 in `libibverbs_enums`: both are known.
"""

from __future__ import annotations

import functools
import importlib
import secrets
import struct
from dataclasses import dataclass
from typing import Any

from gyre_engine.transfer.port import NotPossible, PeerLost, Region

OUTSTANDING = 4
"""Reads in flight of one queue pair, at most."""
PORT = 1
_TIMEOUT, _RETRIES = 17, 7  # 4.096 us * 2^17 = 0.54 s, then 7 times again: a dead peer is known after 4 s
_WIRE = struct.Struct(">IIH16sBBIQ")


def missing() -> str:
    """Empty where verbs can work here, else what is missing and the remedy."""
    try:
        _part("device")
        constants()
    except ImportError as error:
        return f"verbs needs pyverbs ({error}): install Debian's python3-pyverbs, or pip install pyverbs, beside rdma-core"
    try:
        Card().close()
    except NotPossible as error:
        return str(error)
    return ""


def _part(name: str) -> Any:
    return importlib.import_module(f"pyverbs.{name}")


@functools.cache
def constants() -> Any:
    """The module with verbs' constants, under either name."""
    try:
        return _part("enums")
    except ImportError:
        return _part("libibverbs_enums")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a queue pair is, and the memory behind it: what its peer needs to connect and read."""

    number: int
    first_packet: int
    lid: int
    gid: bytes
    mtu: int
    reads: int
    key: int
    address: int

    SIZE = _WIRE.size

    def to_bytes(self) -> bytes:
        return _WIRE.pack(self.number, self.first_packet, self.lid, self.gid, self.mtu, self.reads, self.key, self.address)

    @classmethod
    def from_bytes(cls, data: bytes) -> Address:
        return cls(*_WIRE.unpack(data))


class Card:
    """An open card: the named one, or the first with an active port. Raises NotPossible where there is none."""

    def __init__(self, name: str | None = None) -> None:
        names = [name] if name else [device.name.decode() for device in _part("device").get_device_list()]
        self.context = _first_active(names)
        if self.context is None:
            raise NotPossible(
                f"verbs needs an RDMA card with an active port, and there is none of {names or 'any name'}: load its driver, "
                "or Soft-RoCE by `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`"
            )
        self.domain = _part("pd").PD(self.context)
        self.port = self.context.query_port(PORT)
        self.gid_index = _gid_index(self.context, self.port.gid_tbl_len)
        self.reads = min(OUTSTANDING, self.context.query_device().max_qp_rd_atom)

    def memory(self, region: Region, *, remote: bool) -> Any:
        """`region` as the card sees it, without a copy: readable by peers, or a target here. None for no bytes. Raises NotPossible."""
        if not region.nbytes:
            return None
        e = constants()
        access = e.IBV_ACCESS_REMOTE_READ if remote else e.IBV_ACCESS_LOCAL_WRITE
        try:
            return _part("mr").MR(self.domain, region.nbytes, access, address=region.address)
        except _part("pyverbs_error").PyverbsRDMAError as error:
            raise NotPossible(
                f"the card does not register {region.nbytes} bytes: {error}. Where memory may not be locked, raise `ulimit -l`"
            ) from error

    def close(self) -> None:
        self.domain.close()
        self.context.close()


class Pair:
    """A reliable queue pair of a card, and its completions."""

    def __init__(self, card: Card) -> None:
        e, qp = constants(), _part("qp")
        self._card = card
        self.completions = _part("cq").CQ(card.context, OUTSTANDING + 1)
        room = qp.QPCap(max_send_wr=OUTSTANDING, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        wanted = qp.QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.completions, rcq=self.completions, cap=room, sq_sig_all=1)
        try:
            self._pair = qp.QP(card.domain, wanted)
        except _part("pyverbs_error").PyverbsError as error:
            self.completions.close()
            raise NotPossible(f"the card gives no queue pair: {error}") from error
        self._first_packet = secrets.randbits(24)

    def address(self, memory: Any = None, at: int = 0) -> Address:
        """What the peer is told. `memory`: what it may read, which begins `at`."""
        card = self._card
        gid = bytes.fromhex(str(card.context.query_gid(PORT, card.gid_index)).replace(":", ""))
        key = memory.rkey if memory else 0
        return Address(self._pair.qp_num, self._first_packet, card.port.lid, gid, card.port.active_mtu, card.reads, key, at)

    def connect(self, peer: Address) -> None:
        """Bring the pair up to `peer`. Raises PeerLost where the card cannot reach what was told."""
        try:
            self._connect(peer)
        except _part("pyverbs_error").PyverbsError as error:
            raise PeerLost(f"no queue pair can be connected to {peer.gid.hex()}: {error}") from error

    def _connect(self, peer: Address) -> None:
        e, qp, addr = constants(), _part("qp"), _part("addr")
        text = peer.gid.hex()
        gid = addr.GID(":".join(text[at : at + 4] for at in range(0, 32, 4)))
        a = qp.QPAttr(port_num=PORT)
        a.pkey_index, a.qp_access_flags = 0, e.IBV_ACCESS_REMOTE_READ
        self._pair.to_init(a)
        a.path_mtu = min(self._card.port.active_mtu, peer.mtu)
        a.dest_qp_num, a.rq_psn = peer.number, peer.first_packet
        a.max_dest_rd_atomic, a.min_rnr_timer = min(self._card.reads, peer.reads), 12
        route = addr.GlobalRoute(dgid=gid, sgid_index=self._card.gid_index, hop_limit=64)
        a.ah_attr = addr.AHAttr(port_num=PORT, is_global=1, gr=route, dlid=peer.lid)
        self._pair.to_rtr(a)
        a.sq_psn, a.max_rd_atomic = self._first_packet, min(self._card.reads, peer.reads)
        a.timeout, a.retry_cnt, a.rnr_retry = _TIMEOUT, _RETRIES, _RETRIES
        self._pair.to_rts(a)

    def post_read(self, memory: Any, into: int, peer: Address, offset: int, nbytes: int) -> None:
        """Have the card read `nbytes` of the peer's memory from `offset` on into the address `into` of `memory`."""
        e, wr = constants(), _part("wr")
        part = wr.SGE(into, nbytes, memory.lkey)
        work = wr.SendWR(num_sge=1, sg=[part], opcode=e.IBV_WR_RDMA_READ, send_flags=e.IBV_SEND_SIGNALED)
        work.set_wr_rdma(peer.key, peer.address + offset)
        self._pair.post_send(work)

    def close(self) -> None:
        """On return the card neither reads nor writes memory through this pair."""
        self._pair.close()
        self.completions.close()


def _first_active(names: list[str]) -> Any:
    device, e = _part("device"), constants()
    for name in names:
        try:
            context = device.Context(name=name)
        except _part("pyverbs_error").PyverbsError:
            continue
        if context.query_port(PORT).state == e.IBV_PORT_ACTIVE:
            return context
        context.close()
    return None


def _gid_index(context: Any, length: int) -> int:
    """RoCE v2 before others, an address of IPv4 before one of IPv6, the lowest index of these."""
    e = constants()

    def rank(entry: Any) -> tuple[bool, bool, int]:
        four = entry.gid_str().startswith("0000:0000:0000:0000:0000:ffff:")
        return entry.gid_type != e.IBV_GID_TYPE_ROCE_V2, not four, entry.gid_index

    entries = [entry for entry in context.query_gid_table(length) if entry.port_num == PORT]
    return int(min(entries, key=rank).gid_index) if entries else 0
