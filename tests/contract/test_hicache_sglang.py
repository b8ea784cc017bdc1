"""Our HiCache backend inside the real SGLang, as far as that goes without a GPU (slow).

Two processes run SGLang's own interpreter (`hicache_child`): its factory makes our class, its controller backs up and prefetches
pages of its own host pool through it. A third is SGLang's whole server with our routes. What needs a GPU is in tests/gpu.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre_engine.lifeline import tied
from gyre_engine.sampling import Chunk, EngineNotServing, FinishReason, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.hicache import control
from gyre_engine.sampling.hicache.control import Control, ControlLost, Json
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.sglang import SGLangEngine
from infra.sglang.launch import PYTHON, ended_together, sglang_on_cpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.exists(), reason="SGLang's environment is not installed (make install-sglang)"),
]
CHILD = Path(__file__).with_name("hicache_child.py")
RANK = "tp0of1-pp0of1-cp0of1-dp0"
PAGE_NBYTES = 2 * 2 * 16 * 2 * 16 * 2  # K and V, layers, tokens, heads, head_dim, bytes of a bfloat16
BOOT_SECONDS = 900
IDS = [(7 * i * i + 3 * i) % 250 for i in range(100)]
WHOLE_PAGES = 6


class Child:
    """SGLang's interpreter, asked line by line."""

    def __init__(self, folder: Path, name: str, secret: Path) -> None:
        launch = sglang_on_cpu("none", "v7", host="", port=0, environment=os.environ, scratch=str(folder / name))
        self.sockets = folder / name / "sockets"
        self._secret = secret
        self._log = (folder / f"{name}.log").open("wb")
        self.process = subprocess.Popen(
            (str(PYTHON), str(CHILD)), env=launch.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip

    def start(self, capacity: int = 1 << 20, version: str = "v7", **options: str) -> None:
        """A backend, in the place of the one before."""
        extra = {
            "sockets": str(self.sockets), "capacity": capacity, "version": version, "secret_file": str(self._secret),
            "limits": {"quiet_s": 0.2, "read_s": 5.0},
        }  # fmt: skip
        self.ask("start", extra=extra, **options)

    def ask(self, do: str, **body: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **body}).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def control(self, **body: Any) -> Json:
        """As the server asks a rank."""
        return asyncio.run(control.ask(self.sockets, RANK, body, 20.0))

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, Child]]:
    folder = tmp_path_factory.mktemp("hicache")
    secret = folder / "secret"
    secret.write_bytes(b"shared by the cells of one run..")
    found = [Child(folder, name, secret) for name in ("source", "target")]
    try:
        yield found[0], found[1]
    finally:
        for child in found:
            child.end()


@contextmanager
def backends(children: tuple[Child, Child], **options: Any) -> Iterator[tuple[Child, Child]]:
    for child in children:
        child.start(**options)
    try:
        yield children
    finally:
        for child in children:
            child.ask("close")


def moved(source: Child, target: Child, ids: list[int]) -> int:
    """Export at one, import at the other; how many tokens came over."""
    said = source.control(do="export", ids=ids, lease=60.0)
    return int(target.control(do="import", version=said["version"], part=said["part"])["tokens"])


def test_sglang_loads_our_class_and_it_is_what_sglang_asks_for(children: tuple[Child, Child]) -> None:
    with backends(children) as (child, _):
        told = child.ask("interface")
    assert told["class"][:2] == [
        "gyre_engine.sampling.hicache.storage.GyreHiCache", "sglang.srt.mem_cache.hicache_storage.HiCacheStorage",
    ]  # fmt: skip
    assert told["abstract"] == []
    assert told["ours"] == told["asked"]
    assert {"get", "set", "exists", "batch_get", "batch_set"} <= set(told["asked"])


@pytest.mark.parametrize("zero_copy", [True, False], ids=["interface-v1", "generic"])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "layer_first"])
def test_pages_of_sglangs_host_pool_come_back_byte_by_byte(children: tuple[Child, Child], layout: str, zero_copy: bool) -> None:
    with backends(children, layout=layout) as (child, _):
        child.ask("zero_copy", on=zero_copy)
        written = child.ask("computed", ids=IDS, seed=1)
        assert written["backed_up"] == WHOLE_PAGES * 16
        assert len(set(written["pages"])) == WHOLE_PAGES
        assert child.ask("prefetched", ids=IDS) == {"hits": WHOLE_PAGES * 16, "pages": written["pages"]}
        other = [*IDS[:40], 251, *IDS[41:]]  # differs in its third page
        assert child.ask("prefetched", ids=other) == {"hits": 32, "pages": written["pages"][:2]}


def test_pages_go_from_one_sglang_to_another(children: tuple[Child, Child]) -> None:
    with backends(children) as (source, target):
        written = source.ask("computed", ids=IDS, seed=2)
        assert target.ask("prefetched", ids=IDS) == {"hits": 0, "pages": []}
        assert moved(source, target, IDS) == WHOLE_PAGES * 16
        assert target.ask("prefetched", ids=IDS) == {"hits": WHOLE_PAGES * 16, "pages": written["pages"]}


def test_pages_of_other_weights_are_neither_taken_nor_found(children: tuple[Child, Child]) -> None:
    with backends(children) as (source, target):
        source.ask("computed", ids=IDS, seed=3)
        target.control(do="shut")
        target.control(do="open", version="v8")
        assert moved(source, target, IDS) == 0
        source.control(do="shut")
        assert source.ask("prefetched", ids=IDS)["hits"] == 0
        assert source.ask("computed", ids=IDS[:32], seed=4)["backed_up"] == 0
        source.control(do="open", version="v8")
        assert source.ask("prefetched", ids=IDS)["hits"] == 0


def test_a_damaged_page_is_never_taken(children: tuple[Child, Child]) -> None:
    """One bit of the descriptor's hash, which stands for one bit of the bytes."""
    with backends(children) as (source, target):
        source.ask("computed", ids=IDS, seed=5)
        said = source.control(do="export", ids=IDS, lease=60.0)
        raw = bytes.fromhex(said["part"]["descriptor"])
        at = raw.index(b"digest") + len(b"digest") + 2  # msgpack: the name, then bin 8 and its length
        said["part"]["descriptor"] = (raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]).hex()
        with pytest.raises(ValueError, match="IntegrityError"):
            target.control(do="import", version="v7", part=said["part"])
        assert target.ask("prefetched", ids=IDS)["hits"] == 0


def test_memory_is_bounded_and_a_prefix_loses_its_end_first(children: tuple[Child, Child]) -> None:
    with backends(children, capacity=4 * PAGE_NBYTES) as (child, _):
        written = child.ask("computed", ids=IDS[:64], seed=6)
        child.ask("computed", ids=[9] * 16, seed=7)
        assert child.control(do="state")["nbytes"] == 4 * PAGE_NBYTES
        assert child.ask("prefetched", ids=IDS) == {"hits": 48, "pages": written["pages"][:3]}


def test_a_model_that_keeps_more_than_kv_is_refused(children: tuple[Child, Child]) -> None:
    with backends(children) as (child, _):
        assert child.ask("refused", pool="kv")["refused"] == ""
        assert "mamba" in child.ask("refused", pool="mamba")["refused"]
        assert "MLA" in child.ask("refused_mla")["refused"]


def test_a_source_that_was_killed_is_a_miss_within_the_limit(children: tuple[Child, Child], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"shared by the cells of one run..")
    doomed = Child(tmp_path, "doomed", secret)
    try:
        doomed.start()
        doomed.ask("computed", ids=IDS, seed=8)
        said = doomed.control(do="export", ids=IDS, lease=60.0)
    finally:
        doomed.end()
    with backends(children) as (_, target):
        began = time.monotonic()
        with pytest.raises(ValueError, match="PeerLost"):
            target.control(do="import", version=said["version"], part=said["part"])
        assert time.monotonic() - began < 10.0
        assert target.ask("prefetched", ids=IDS) == {"hits": 0, "pages": []}
        with pytest.raises(ControlLost):
            asyncio.run(control.ask(doomed.sockets, RANK, {"do": "state"}, 2.0))


class Listening:
    """Stands where the backend would listen: on a CPU SGLang runs without it."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[Json] = []
        self.control = Control(folder, RANK, self._answer)

    def _answer(self, body: Json) -> Json:
        self.asked.append(body)
        return {"part": None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from dataclasses import replace

    tiny = replace(QUICKSTART, vocab=256, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=128, max_context=4096)
    root = tmp_path_factory.mktemp("models")
    return write_fresh_model(root / "v1", tiny, seed=1, spread=0.15), write_fresh_model(root / "v2", tiny, seed=2, spread=0.15)


@pytest.fixture
async def server(folders: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[tuple[SGLangEngine, Path]]:
    """SGLang's server with our routes, and the folder in which it looks for ranks."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    launch = sglang_on_cpu(
        str(folders[0]), "1", host="127.0.0.1", port=port, environment=os.environ, scratch=str(tmp_path),
        flags={"--hicache-storage-backend-extra-config": json.dumps({"sockets": str(sockets)})},
    )  # fmt: skip
    client = SGLangEngine(f"http://127.0.0.1:{port}")
    with (tmp_path / "log").open("wb") as output:
        process = subprocess.Popen(tied(ended_together(launch.argv)), env=launch.env, stdout=output, stderr=output)
        try:
            async with asyncio.timeout(BOOT_SECONDS):
                while True:
                    assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
                    with suppress(EngineNotServing):
                        await client.stats()
                        break
                    await asyncio.sleep(0.1)
            yield client, sockets
        finally:
            await client.close()
            process.kill()
            process.wait()


async def interrupted(client: SGLangEngine, rid: str) -> list[int]:
    """The ids of a request that was drained while it sampled."""
    chunks: list[Chunk] = []
    sampling = asyncio.Event()

    async def ask() -> None:
        async for chunk in client.generate(GenerateRequest(rid, IDS, SamplingParams(max_tokens=3000, seed=1))):
            chunks.append(chunk)
            sampling.set()

    asking = asyncio.create_task(ask())
    await sampling.wait()
    found = await client.drain()
    await asking
    assert chunks[-1].finish_reason is FinishReason.ABORT
    ids = [*IDS, *(token for chunk in chunks for token in chunk.output_ids)]
    assert [(one.rid, one.tokens) for one in found] == [(rid, len(ids))]
    return ids


async def test_sglangs_server_says_whom_it_interrupted_and_tells_the_ranks_in_time(
    server: tuple[SGLangEngine, Path], folders: tuple[Path, Path]
) -> None:
    client, sockets = server
    ids = await interrupted(client, "exec-1")
    assert await client.export_kv("exec-1", lease=5.0) is None  # no rank listens, as on every CPU
    await client.resume()
    rank = Listening(sockets)

    await interrupted(client, "exec-2")
    await client.resume()
    assert await client.export_kv("exec-2", lease=5.0) is None
    assert rank.asked == []  # the engine goes on: nobody is interrupted any more

    ids = await interrupted(client, "exec-3")
    assert await client.export_kv("exec-3", lease=5.0) is None
    assert rank.asked == [{"do": "export", "ids": ids[:-1], "lease": 5.0}]
    await client.resume()

    before = await complete(client, GenerateRequest("exec-4", IDS, SamplingParams(max_tokens=4, temperature=0.0)))
    rank.asked.clear()
    await client.load_weights(folders[1], "2")
    assert rank.asked == [{"do": "shut"}, {"do": "open", "version": "2"}]
    after = await complete(client, GenerateRequest("exec-5", IDS, SamplingParams(max_tokens=4, temperature=0.0)))
    assert after.weight_spans == ((0, "2"),)
    assert after.cached_tokens == 0  # the cache is empty when the ranks are told
    assert not np.allclose(before.logprobs, after.logprobs)

    rank.asked.clear()
    running = asyncio.create_task(complete(client, GenerateRequest("exec-6", IDS, SamplingParams(max_tokens=3000, seed=1))))
    while not (await client.stats()).running:
        await asyncio.sleep(0.01)
    await client.load_weights(folders[0], "1")  # to a busy engine: who is sampling is handed back and goes on by a new request
    assert (await running).finish_reason is FinishReason.ABORT
    assert rank.asked == [{"do": "shut"}, {"do": "open", "version": "1"}]
    rank.control.close()
