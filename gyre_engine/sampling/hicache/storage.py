"""SGLang's HiCache storage backend that keeps pages for other cells: what SGLang's dynamic interface loads (docs/kv.md).

promises  SGLang gets a page whole and of its present weights, or a miss; it never gets an exception; page bytes are copied once,
          between SGLang's host pool and a page of ours (`interface_v1`)

SGLang calls from two threads of its scheduler, one that backs up and one that prefetches; exports and imports come over the socket.
Its extra config: sockets (a folder), version, capacity (bytes); transfer, host, secret_file and limits where others than usual.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, HiCacheStorageExtraInfo
from sglang.srt.mem_cache.utils import get_storage_hash_str

from gyre_engine.sampling.hicache.control import Control, Json
from gyre_engine.sampling.hicache.desk import DeskLimits, PageDesk, PageShape
from gyre_engine.sampling.hicache.store import Page, PageStore
from gyre_engine.sampling.kv import KvPart
from gyre_engine.transfer import TransferError
from gyre_engine.transfer.kinds import open_transfer

logger = logging.getLogger(__name__)


class GyreHiCache(HiCacheStorage):  # type: ignore[misc]
    """One rank's backend."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        if storage_config.is_mla_model and storage_config.tp_size > 1:
            raise ValueError(
                "GyreHiCache keeps each rank's own pages, and SGLang lets one rank write those of an MLA model for all: "
                'run it with --tp-size 1, or without KV that moves (cells.engine_kv = "none")'
            )
        self._rank = rank_name(storage_config)
        self._store = PageStore(int(extra["capacity"]), str(extra["version"]))
        secret = Path(extra["secret_file"]).read_bytes().strip() if extra.get("secret_file") else None
        self._transfer = open_transfer(str(extra.get("transfer", "tcp")), str(extra.get("host", "127.0.0.1")), secret=secret)
        self._limits = DeskLimits(**extra.get("limits", {}))
        self._desk: PageDesk | None = None
        self._control = Control(Path(extra["sockets"]), self._rank, self._answer)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's host memory, from whose pages ours are copied."""
        self.mem_pool_host = pool = mem_pool_host
        shape = PageShape(self._rank, _layout(pool), int(pool.page_size), sum(_sizes(pool)))
        self._desk = PageDesk(self._store, self._transfer, shape, lambda ids: _keys(ids, shape.page_tokens), self._limits)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Raises where a model keeps more than plain KV: half of its state would move."""
        if str(host_pool_name) != "kv":
            raise ValueError(
                f"GyreHiCache moves plain KV; this model keeps {host_pool_name} beside it: "
                'run it without KV that moves (cells.engine_kv = "none")'
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    # What SGLang calls with interface_v1: pages between its host pool and ours.

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Keep pages of the host pool; which of them are kept."""
        version = self._store.version  # before a byte is read
        parts = self._parts(host_indices, len(keys))
        kept = [
            self._store.get(key) is not None or self._store.put(key, _gathered(part), version)
            for key, part in zip(keys, parts, strict=True)
        ]
        self._store.prefix(keys)
        return kept

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Fill pages of the host pool; which of them are filled."""
        return [
            _scattered(self._store.get(key), part) for key, part in zip(keys, self._parts(host_indices, len(keys)), strict=True)
        ]

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many are there, from the first on without a gap."""
        return self._store.prefix(keys)

    def exists(self, key: str) -> bool:
        """Whether one is there."""
        return self._store.prefix([key]) == 1

    # What it calls without: flat tensors.

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Keep a page."""
        version = self._store.version
        return value is not None and self._store.put(key, _bytes_of(value).copy(), version)

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Keep pages; whether all are kept."""
        return values is not None and all(self.set(key, value) for key, value in zip(keys, values, strict=True))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """`target_location` filled with a page; None where it is not here, or is not as long."""
        page = self._store.get(key)
        if page is None or target_location is None or not target_location.is_contiguous():
            return None
        into = _bytes_of(target_location)
        if into.nbytes != page.nbytes:
            return None
        into[:] = page
        found: torch.Tensor = target_location
        return found

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None] | int:
        """As `get`, of each."""
        return [self.get(key, into) for key, into in zip(keys, target_locations or [None] * len(keys), strict=True)]

    def clear(self) -> None:
        """Forget all pages."""
        self._store.clear()

    def close(self) -> None:
        """SGLang detaches the backend, or ends."""
        self._control.close()
        self._transfer.close()

    def _parts(self, host_indices: torch.Tensor, pages: int) -> list[list[tuple[int, int]]]:
        """Where each page's bytes lie in the host pool: (address, size) of its pieces, in order."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        pieces = list(zip(addresses, sizes, strict=True))
        each = len(pieces) // max(1, pages)
        return [pieces[at : at + each] for at in range(0, len(pieces), each)] if each else []

    # What the cell asks over the socket.

    def _answer(self, body: Json) -> Json:
        match body["do"]:
            case "shut":
                self._store.shut()
            case "open":
                self._store.open(str(body["version"]))
            case "export":
                return self._export([int(token) for token in body["ids"]], float(body["lease"]))
            case "import":
                return {"tokens": self._take(str(body["version"]), KvPart.from_fields(body["part"]))}
            case "release":
                self._opened().release(KvPart.from_fields(body["part"]))
            case "state":
                return {"version": self._store.version, "nbytes": self._store.nbytes, "capacity": self._store.capacity}
            case other:
                raise ValueError(f"a rank does not know how to {other!r}")
        return {}

    def _export(self, ids: Sequence[int], lease: float) -> Json:
        export = self._opened().export(ids, lease)
        if export is None:
            return {"part": None}
        return {"version": export.weight_version, "page_tokens": export.page_tokens, "part": export.part.to_fields()}

    def _take(self, version: str, part: KvPart) -> int:
        try:
            return self._opened().take(version, part)
        except TransferError as error:
            logger.warning("no KV from another cell: %s", error)
            raise

    def _opened(self) -> PageDesk:
        if self._desk is None:
            raise ValueError("SGLang is still starting: ask again once it serves")
        return self._desk


def rank_name(config: HiCacheStorageConfig) -> str:
    """Which share of the model a rank holds: pages are exchanged between ranks of one name."""
    return (
        f"tp{config.tp_rank}of{config.tp_size}-pp{config.pp_rank}of{config.pp_size}"
        f"-cp{config.attn_cp_rank}of{config.attn_cp_size}-dp{config.dp_rank}"
    )


def _layout(pool: Any) -> str:
    """Everything that a page's bytes mean something by."""
    names = ("layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim")
    numbers = " ".join(f"{name}={getattr(pool, name)}" for name in names if hasattr(pool, name))
    return f"{type(pool).__name__} {pool.layout} {pool.dtype} page={pool.page_size} {numbers}"


def _sizes(pool: Any) -> list[int]:
    """Of the pieces of one page."""
    return [int(size) for size in pool.get_page_buffer_meta(torch.arange(int(pool.page_size)))[1]]


def _keys(ids: Sequence[int], page_tokens: int) -> list[str]:
    """SGLang's own keys of the whole pages."""
    whole = len(ids) - len(ids) % page_tokens
    return list(get_storage_hash_str(list(ids[:whole]), None, page_size=page_tokens)) if whole else []


def _gathered(pieces: list[tuple[int, int]]) -> Page:
    page = np.empty(sum(size for _, size in pieces), dtype=np.uint8)
    at = page.ctypes.data
    for address, size in pieces:
        ctypes.memmove(at, address, size)
        at += size
    return page


def _scattered(page: Page | None, pieces: list[tuple[int, int]]) -> bool:
    if page is None or page.nbytes != sum(size for _, size in pieces):
        return False
    at = page.ctypes.data
    for address, size in pieces:
        ctypes.memmove(address, at, size)
        at += size
    return True


def _bytes_of(tensor: torch.Tensor) -> Page:
    """A contiguous tensor's memory."""
    page: Page = tensor.detach().contiguous().view(torch.uint8).numpy().reshape(-1)
    return page
