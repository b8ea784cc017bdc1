"""Pages by key: bounded, of one version of the weights, the first of a prefix the last to leave."""

from __future__ import annotations

import threading
import time

import numpy as np

from gyre_engine.sampling.hicache.store import Page, PageStore


def page(fill: int, nbytes: int = 10) -> Page:
    return np.full(nbytes, fill, dtype=np.uint8)


def filled(store: PageStore, *keys: str) -> list[bool]:
    return [store.put(key, page(at), store.version) for at, key in enumerate(keys)]


def test_a_page_comes_back_as_it_was_put() -> None:
    store = PageStore(100, "v1")
    assert filled(store, "a", "b") == [True, True]
    found = store.get("b")
    assert found is not None
    assert found.tolist() == [1] * 10
    assert store.get("c") is None


def test_memory_stays_below_the_capacity_and_the_oldest_pages_leave() -> None:
    store = PageStore(35, "v1")
    filled(store, "a", "b", "c", "d", "e")
    assert store.nbytes == 30
    assert [store.get(key) is not None for key in "abcde"] == [False, False, True, True, True]


def test_the_first_pages_of_a_prefix_outlive_the_last() -> None:
    """Without its first page a prefix is worth nothing; without its last, all but one."""
    store = PageStore(30, "v1")
    filled(store, "a", "b", "c")
    assert store.prefix(["a", "b", "c"]) == 3
    filled(store, "x")
    assert store.prefix(["a", "b", "c"]) == 2


def test_a_gap_ends_a_prefix() -> None:
    store = PageStore(100, "v1")
    filled(store, "a", "c")
    assert store.prefix(["a", "b", "c"]) == 1
    assert store.prefix(["b", "c"]) == 0


def test_a_page_that_is_larger_than_the_store_is_not_kept() -> None:
    store = PageStore(30, "v1")
    filled(store, "a")
    assert not store.put("big", page(0, 31), "v1")
    assert store.get("a") is not None


def test_pages_of_other_weights_are_neither_given_nor_taken() -> None:
    store = PageStore(100, "v1")
    filled(store, "a")
    store.open("v2")
    assert store.get("a") is None
    assert store.prefix(["a"]) == 0
    assert not store.put("b", page(1), "v1")  # it began to be read before
    assert store.put("a", page(2), "v2")


def test_while_the_weights_change_nothing_is_given_or_taken() -> None:
    store = PageStore(100, "v1")
    filled(store, "a")
    began_with = store.version
    store.shut()
    assert (store.version, store.get("a"), store.prefix(["a"])) == (None, None, 0)
    assert not store.put("b", page(1), began_with)
    assert not store.put("b", page(1), store.version)


def test_weights_that_did_not_change_after_all_keep_their_pages() -> None:
    store = PageStore(100, "v1")
    filled(store, "a")
    store.shut()
    store.open("v1")
    assert store.prefix(["a"]) == 1


def test_what_is_lent_out_counts_and_is_never_taken_from_another() -> None:
    store = PageStore(40, "v1")
    filled(store, "a", "b", "c")
    assert store.lend(25)
    assert store.nbytes == 35  # one page of ten is left beside it
    assert not store.lend(16)
    assert not store.put("big", page(0, 16), "v1")
    store.give_back(25)
    assert store.lend(40)
    assert store.prefix(["c"]) == 0


def test_an_export_waits_for_pages_that_are_still_coming() -> None:
    store = PageStore(100, "v1")
    filled(store, "a")
    late = threading.Timer(0.05, lambda: filled(store, "b"))
    late.start()
    assert store.awaited(["a", "b"], quiet_s=30.0) == 2
    late.join()


def test_an_export_waits_no_longer_than_it_is_quiet() -> None:
    store = PageStore(100, "v1")
    filled(store, "a")
    began = time.monotonic()
    assert store.awaited(["a", "b"], quiet_s=0.05) == 1
    assert 0.04 < time.monotonic() - began < 5.0
