"""Runs in SGLang's own interpreter: SGLang's real factory, base class, host pool and controller around our backend, told what to do by
lines of JSON. On a CPU the host pool holds memory that is not pinned; all that needs a GPU (copies from and to it) is left out."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from queue import Queue
from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController, PrefetchOperation, StorageOperation
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str

PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 2, 2, 16, 1024


class Cell:
    """One rank's backend, host pool, and the part of SGLang's controller that works on the two."""

    def __init__(self, extra: dict[str, Any], layout: str = "page_first", dtype: str = "bfloat16") -> None:
        self.pool = host_pool(layout, getattr(torch, dtype))
        named = {"backend_name": "gyre", "module_path": "gyre_engine.sampling.hicache.storage", "class_name": "GyreHiCache"}
        config = HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
            enable_storage_metrics=False, is_page_first_layout=layout == "page_first", model_name="tiny",
            extra_config={**named, **extra},
        )  # fmt: skip
        self.backend = StorageBackendFactory.create_backend("dynamic", config, self.pool)
        self.backend.register_mem_pool_host(self.pool)
        self.backend.on_host_pools_registered()
        self.controller = controller = HiCacheController.__new__(HiCacheController)
        controller.storage_backend, controller.storage_host_pool, controller.mem_pool_host = self.backend, self.pool, self.pool
        controller.page_size, controller.get_hash_str = PAGE, get_storage_hash_str
        controller.prefetch_sync_queue = Queue()
        self.zero_copy(True)

    def zero_copy(self, on: bool) -> None:
        """Which of SGLang's two ways of moving pages it takes."""
        controller = self.controller
        controller.page_get_func = controller._page_get_zero_copy if on else controller._generic_page_get
        controller.page_set_func = controller._page_set_zero_copy if on else controller._generic_page_set

    def computed(self, ids: list[int], seed: int) -> dict[str, Any]:
        """Fill pages of the host pool with random bytes, and let SGLang's controller back them up."""
        whole = ids[: len(ids) - len(ids) % PAGE]
        keys = list(get_storage_hash_str(whole, None, page_size=PAGE))
        indices = self.pool.alloc(len(whole))
        generator = torch.Generator().manual_seed(seed)
        for at in range(0, len(whole), PAGE):
            page = self.pool.get_dummy_flat_data_page()
            noise = torch.randint(0, 256, (page.numel() * page.element_size(),), dtype=torch.uint8, generator=generator)
            self.pool.set_from_flat_data_page(int(indices[at]), noise.view(page.dtype))
        operation = StorageOperation(indices, whole, hash_value=keys)
        self.controller._page_backup(operation)
        return {"keys": keys, "backed_up": operation.completed_tokens, "pages": self._hashes(indices)}

    def prefetched(self, ids: list[int]) -> dict[str, Any]:
        """What SGLang's controller finds of these ids, and what it has then in fresh pages of the host pool."""
        operation = PrefetchOperation("r", ids)
        operation.hash_value, hits = self.controller._storage_hit_query(operation)
        operation.host_indices = self.pool.alloc(hits) if hits else torch.empty(0, dtype=torch.int64)
        done = self.controller._page_transfer(operation)
        found = self._hashes(operation.host_indices[: done * PAGE])
        if hits:
            self.pool.free(operation.host_indices)
        return {"hits": hits, "pages": found}

    def _hashes(self, indices: torch.Tensor) -> list[str]:
        pages = [self.pool.get_data_page(int(indices[at])) for at in range(0, len(indices), PAGE)]
        return [hashlib.sha256(page.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for page in pages]


def host_pool(layout: str, dtype: torch.dtype) -> MHATokenToKVPoolHost:
    """SGLang's own, without pinned memory."""
    layers = tuple(torch.zeros(TOKENS, HEADS, DIM, dtype=dtype) for _ in range(2 * LAYERS))
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    buffers = KVBuffers(
        k=layers[:LAYERS], v=layers[LAYERS:], k_data_ptrs=pointers[:LAYERS], v_data_ptrs=pointers[LAYERS:],
        layout=KVBufferLayout.NHD,
    )  # fmt: skip
    info = MHABufferInfo(
        buffers=buffers, page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=dtype, device=torch.device("cpu")
    )
    with host_memory_budget_scope(1 << 30):
        return MHATokenToKVPoolHost(
            info, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu", device_capacity_tokens=TOKENS, start_layer=0,
            end_layer=LAYERS,
        )  # fmt: skip


def interface(backend: HiCacheStorage) -> dict[str, Any]:
    """What SGLang's class asks of its backends, beside ours: names and defaults of parameters."""

    def parameters(owner: type, name: str) -> list[list[str]]:
        found = list(inspect.signature(getattr(owner, name)).parameters.values())
        return [[one.name, repr(one.default)] for one in found]

    asked = [*sorted(HiCacheStorage.__abstractmethods__), "batch_get_v1", "batch_set_v1", "batch_exists", "clear"]
    return {
        "class": [f"{owner.__module__}.{owner.__qualname__}" for owner in type(backend).__mro__],
        "abstract": sorted(type(backend).__abstractmethods__),
        "asked": {name: parameters(HiCacheStorage, name) for name in asked},
        "ours": {name: parameters(type(backend), name) for name in asked},
    }


def main() -> None:
    """{do, ...} a line -> a line."""
    cell: Any = None
    said = sys.stdout
    sys.stdout = sys.stderr  # what SGLang prints is no answer
    for line in sys.stdin:
        body = json.loads(line)
        do = body.pop("do")
        try:
            if do == "start":
                cell, answer = Cell(**body), {}
            elif do == "interface":
                answer = interface(cell.backend)
            elif do == "refused":
                answer = {"refused": refused(cell, **body)}
            elif do == "refused_mla":
                answer = {"refused": refused_mla()}
            elif do == "close":
                answer = cell.backend.close() or {}
            else:
                answer = getattr(cell, do)(**body) or {}
        except Exception as error:
            answer = {"error": repr(error)}
        said.write(json.dumps(answer) + "\n")
        said.flush()


def refused_mla() -> str:
    """What the backend says of an MLA model over two ranks: the second would never have a page."""
    named = {"backend_name": "gyre", "module_path": "gyre_engine.sampling.hicache.storage", "class_name": "GyreHiCache"}
    config = HiCacheStorageConfig(
        tp_rank=1, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=True, enable_storage_metrics=False,
        is_page_first_layout=True, model_name="tiny", extra_config=named,
    )  # fmt: skip
    try:
        StorageBackendFactory.create_backend("dynamic", config, None)
    except ValueError as error:
        return str(error)
    return ""


def refused(cell: Cell, pool: str) -> str:
    """What the backend says of a model that keeps such a pool beside its KV."""
    try:
        cell.backend.register_mem_host_pool_v2(cell.pool, pool)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
