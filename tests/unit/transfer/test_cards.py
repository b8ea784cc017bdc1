"""RDMA cards without one: what a machine lacks, pyverbs under both names, which address is taken, and what peers are told."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gyre_engine.transfer import NotPossible
from gyre_engine.transfer.cards import Address, _gid_index, constants
from gyre_engine.transfer.kinds import open_transfer, why_not


@pytest.fixture
def pyverbs(monkeypatch):
    """A pyverbs of which only the given modules exist."""

    def only(**modules):
        package = ModuleType("pyverbs")
        package.__path__ = []
        monkeypatch.setitem(sys.modules, "pyverbs", package)
        for name in ("device", "enums", "libibverbs_enums"):
            monkeypatch.setitem(sys.modules, f"pyverbs.{name}", modules.get(name))
        constants.cache_clear()

    yield only
    constants.cache_clear()


@pytest.mark.parametrize("name", ["enums", "libibverbs_enums"])
def test_the_constants_are_found_under_the_old_and_the_new_name(pyverbs, name):
    module = ModuleType(name)
    pyverbs(**{name: module})
    assert constants() is module


def test_a_machine_without_pyverbs_or_without_a_card_says_what_it_lacks(pyverbs, monkeypatch):
    pyverbs(device=SimpleNamespace(get_device_list=list), enums=ModuleType("enums"))
    assert "RDMA card with an active port" in why_not("verbs") and "rdma_rxe" in why_not("verbs")
    with pytest.raises(NotPossible, match="rdma link add"):
        open_transfer("verbs")
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    monkeypatch.delitem(sys.modules, "pyverbs.device")
    assert "install Debian's python3-pyverbs" in why_not("verbs")


def test_other_kinds_are_refused_and_tcp_needs_nothing():
    assert why_not("tcp") == ""
    assert "there are tcp, verbs" in why_not("carrier pigeon")
    with pytest.raises(NotPossible, match="carrier pigeon"):
        open_transfer("carrier pigeon")


def test_an_address_travels_in_40_bytes():
    """By hand: big-endian, number, first packet, lid, gid, mtu, reads, key, address."""
    address = Address(0x11, 0x533C68, 2, bytes(range(16)), 5, 32, 0x3A4, 0x55824E995000)
    expected = "0000001100533c680002000102030405060708090a0b0c0d0e0f0520000003a4000055824e995000"
    assert address.to_bytes().hex() == expected
    assert Address.SIZE == 40
    assert Address.from_bytes(address.to_bytes()) == address


def test_the_address_of_ipv4_over_roce_v2_is_taken(pyverbs):
    """As a RoCE card lists them: each address once for RoCE v1 and once for v2, another port's last."""
    pyverbs(enums=SimpleNamespace(IBV_GID_TYPE_ROCE_V2=2))
    link, four = "fe80:0000:0000:0000:0200:00ff:fe00:0000", "0000:0000:0000:0000:0000:ffff:7f00:0001"
    table = [(link, 1, 1), (link, 2, 1), (four, 1, 1), (four, 2, 1), (four, 2, 1), (four, 2, 2)]
    entries = [SimpleNamespace(gid_str=lambda t=t: t, gid_type=k, port_num=p, gid_index=i) for i, (t, k, p) in enumerate(table)]
    assert _gid_index(SimpleNamespace(query_gid_table=lambda length: entries[:length]), len(entries)) == 3
    assert _gid_index(SimpleNamespace(query_gid_table=lambda length: []), 0) == 0
