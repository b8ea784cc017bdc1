"""Pages that go from one rank's store to another's, over tcp."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gyre_engine.sampling.hicache.desk import DeskLimits, Export, KvRefused, PageDesk, PageShape
from gyre_engine.sampling.hicache.store import PageStore
from gyre_engine.sampling.kv import KvPart, KvTicket
from gyre_engine.transfer import Descriptor, NotPossible, PeerLost, Region, WrongKey
from gyre_engine.transfer.tcp import TcpTransfer

SECRET = b"shared by the cells of one run.."
SHAPE = PageShape("tp0of1", "page_first float32", page_tokens=4, page_nbytes=48)
WHOLE = 48 + 32
IDS = list(range(100, 121))  # five pages and one token


def keys_of(ids: Sequence[int]) -> list[str]:
    """A chain of SHA-256 over whole pages, as SGLang has it."""
    keys, prior = [], b""
    for at in range(0, len(ids) - len(ids) % SHAPE.page_tokens, SHAPE.page_tokens):
        prior = hashlib.sha256(prior + np.array(ids[at : at + SHAPE.page_tokens], dtype="<u4").tobytes()).digest()
        keys.append(prior.hex())
    return keys


@dataclass
class Rank:
    """One rank of one cell."""

    store: PageStore
    transfer: TcpTransfer
    desk: PageDesk

    def computed(self, ids: Sequence[int]) -> list[bytes]:
        """Pages as if the engine had written them; each differs."""
        pages = [np.random.default_rng(int(key[:8], 16)).bytes(SHAPE.page_nbytes) for key in keys_of(ids)]
        for key, page in zip(keys_of(ids), pages, strict=True):
            assert self.store.put(key, np.frombuffer(page, dtype=np.uint8), self.store.version)
        return pages

    def has(self, ids: Sequence[int]) -> list[bytes | None]:
        found = [self.store.get(key) for key in keys_of(ids)]
        return [None if page is None else page.tobytes() for page in found]


def rank(version: str, capacity: int = 100 * WHOLE, shape: PageShape = SHAPE) -> Rank:
    store, transfer = PageStore(capacity, version), TcpTransfer(secret=SECRET)
    return Rank(store, transfer, PageDesk(store, transfer, shape, keys_of, DeskLimits(quiet_s=0.02, read_s=5.0, release_s=5.0)))


@pytest.fixture
def ranks() -> Iterator[tuple[Rank, Rank]]:
    """Two of version v7."""
    pair = rank("v7"), rank("v7")
    yield pair
    for one in pair:
        one.transfer.close()


def exported(source: Rank, ids: Sequence[int] = IDS, lease: float = 60.0) -> Export:
    export = source.desk.export(ids, lease)
    assert export is not None
    return export


def test_pages_arrive_as_they_were_computed(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    pages = source.computed(IDS)
    export = exported(source)
    ticket = KvTicket(export.weight_version, page_tokens=export.page_tokens, parts=(export.part,))
    assert (ticket.weight_version, ticket.tokens, ticket.nbytes) == ("v7", 20, 5 * 48)
    assert target.desk.take("v7", KvTicket.from_bytes(ticket.to_bytes()).parts[0]) == 20
    assert target.has(IDS) == pages


def test_what_the_store_lacks_in_the_middle_ends_the_export(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    source.computed(IDS[:8])
    assert exported(source).part.pages == 2
    assert target.desk.export(IDS, 60.0) is None


def test_pages_of_other_weights_are_not_fetched(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    source.computed(IDS)
    part = exported(source).part
    target.store.open("v8")
    source.transfer.close()  # whoever asked it would learn that it is gone
    assert target.desk.take("v7", part) == 0


def test_weights_that_change_while_pages_come_in_leave_nothing(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    source.computed(IDS)
    part = exported(source).part

    class NewWeights(TcpTransfer):
        def read(self, source: Descriptor, into: Region, **options: object) -> None:
            super().read(source, into, **options)  # type: ignore[arg-type]
            target.store.shut()
            target.store.open("v8")

    reading = NewWeights(secret=SECRET)
    desk = PageDesk(target.store, reading, SHAPE, keys_of)
    assert desk.take("v7", part) == 0
    assert target.has(IDS) == [None] * 5
    assert target.store.nbytes == 0
    reading.close()


def test_an_export_outlives_what_the_store_drops(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    pages = source.computed(IDS)
    part = exported(source).part
    source.store.open("v8")
    assert target.desk.take("v7", part) == 20
    assert target.has(IDS) == pages


def test_what_was_released_cannot_be_read_and_its_memory_is_free(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    source.computed(IDS)
    before = source.store.nbytes
    part = exported(source).part
    assert source.store.nbytes == before + 5 * WHOLE
    source.desk.release(part)
    source.desk.release(part)
    assert source.store.nbytes == before
    with pytest.raises(WrongKey):
        target.desk.take("v7", part)
    assert target.store.nbytes == 0


def test_an_export_that_nobody_releases_ends_with_its_lease(ranks: tuple[Rank, Rank]) -> None:
    source, _ = ranks
    source.computed(IDS)
    before = source.store.nbytes
    exported(source, lease=0.0)
    assert source.desk.export(IDS[:4], 60.0) is not None  # the desk looks at leases when it is used
    assert source.store.nbytes == before + WHOLE


class Busy(TcpTransfer):
    """Somebody reads an export as long as its key is among `read_now`; nothing can be registered while it is `full`."""

    def __init__(self) -> None:
        super().__init__(secret=SECRET)
        self.read_now: set[bytes] = set()
        self.full = False

    def register(self, region: Region, **options: object) -> Descriptor:
        if self.full:
            raise NotPossible("the card takes no more memory: raise memlock")
        return super().register(region, **options)  # type: ignore[arg-type]

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        if descriptor.key_id in self.read_now:
            raise TimeoutError("1 readers still hold it")
        super().unregister(descriptor, timeout=timeout)


@pytest.fixture
def busy() -> Iterator[tuple[Rank, Busy]]:
    """One whose transfer is."""
    store, transfer = PageStore(100 * WHOLE, "v7"), Busy()
    yield Rank(store, transfer, PageDesk(store, transfer, SHAPE, keys_of, DeskLimits(quiet_s=0.02))), transfer
    transfer.close()


def key_of(export: Export) -> bytes:
    return Descriptor.from_bytes(export.part.descriptor).key_id


def test_an_export_that_is_still_read_is_given_back_once_nobody_reads(busy: tuple[Rank, Busy]) -> None:
    source, transfer = busy
    source.computed(IDS)
    before = source.store.nbytes
    one = exported(source)
    transfer.read_now = {key_of(one)}
    with pytest.raises(TimeoutError):
        source.desk.release(one.part)
    assert source.store.nbytes == before + 5 * WHOLE  # somebody reads it
    transfer.read_now = set()
    source.desk.release(exported(source, IDS[:4]).part)
    assert source.store.nbytes == before


def test_who_still_reads_an_export_whose_lease_is_over_holds_up_no_other(busy: tuple[Rank, Busy]) -> None:
    source, transfer = busy
    source.computed(IDS)
    before = source.store.nbytes
    held = exported(source, lease=0.0)
    transfer.read_now = {key_of(held)}
    exported(source, IDS[:8], lease=0.0)
    other = exported(source, IDS[:4])
    assert source.store.nbytes == before + (5 + 1) * WHOLE
    source.desk.release(other.part)
    assert source.store.nbytes == before + 5 * WHOLE


def test_memory_that_cannot_be_registered_is_given_back(busy: tuple[Rank, Busy]) -> None:
    source, transfer = busy
    source.computed(IDS)
    before, transfer.full = source.store.nbytes, True
    with pytest.raises(NotPossible, match="memlock"):
        source.desk.export(IDS, 60.0)
    assert source.store.nbytes == before


def test_a_dead_source_costs_no_more_than_the_limit(ranks: tuple[Rank, Rank]) -> None:
    source, target = ranks
    source.computed(IDS)
    part = exported(source).part
    source.transfer.close()
    began = time.monotonic()
    with pytest.raises(PeerLost):
        target.desk.take("v7", part)
    assert time.monotonic() - began < 6.0
    assert (target.store.nbytes, target.has(IDS)) == (0, [None] * 5)


def test_an_export_takes_at_most_half_of_the_store() -> None:
    small = rank("v7", capacity=6 * WHOLE)
    small.computed(IDS)
    part = exported(small).part
    assert part.pages == 3
    assert small.store.nbytes <= 6 * WHOLE
    small.transfer.close()


def test_an_import_that_has_no_room_says_how_to_make_some(ranks: tuple[Rank, Rank]) -> None:
    source, _ = ranks
    source.computed(IDS)
    tight = rank("v7", capacity=6 * WHOLE)
    with pytest.raises(KvRefused, match=r"cells\.engine_kv_mb"):
        tight.desk.take("v7", exported(source).part)
    tight.transfer.close()


@pytest.mark.parametrize(
    "other", [replace(SHAPE, layout="page_first bfloat16"), replace(SHAPE, rank="tp1of2"), replace(SHAPE, page_nbytes=96)]
)
def test_pages_of_another_shape_are_refused(ranks: tuple[Rank, Rank], other: PageShape) -> None:
    source, _ = ranks
    source.computed(IDS)
    target = rank("v7", shape=other)
    with pytest.raises(KvRefused, match="one model, dtype, page size and layout"):
        target.desk.take("v7", exported(source).part)
    target.transfer.close()


def test_a_ticket_of_pages_survives_its_way_and_unknown_fields(ranks: tuple[Rank, Rank]) -> None:
    part = KvPart("tp0of1", "page_first", 3, 48, b"\x01\x02")
    ticket = KvTicket("v7", page_tokens=4, parts=(part, replace(part, rank="tp1of2", pages=2)))
    fields = ticket.to_fields() | {"later": 1}
    fields["parts"][0]["later"] = 2
    assert KvTicket.from_fields(fields) == ticket
    assert (ticket.tokens, ticket.nbytes) == (8, 5 * 48)


def test_a_ticket_of_before_is_still_read() -> None:
    """What an earlier version wrote, by hand."""
    old = {"weight_version": "v7", "shape": [2, 2, 1, 5, 4], "descriptor": "0a", "ids": "0b"}
    ticket = KvTicket.from_fields(old)
    assert (ticket.tokens, ticket.nbytes, ticket.parts) == (5, 4 * 80, ())
    assert ticket.to_fields() == old


@pytest.mark.parametrize("broken", [{"pages": -1}, {"page_nbytes": "many"}, {"descriptor": "no hex"}])
def test_a_part_that_is_none_is_a_value_error(broken: dict[str, object]) -> None:
    fields = KvPart("r", "l", 1, 1, b"").to_fields() | broken
    with pytest.raises(ValueError, match=r"."):
        KvPart.from_fields(fields)
