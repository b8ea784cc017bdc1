"""What the proxy adds to a model call: its latency with short and long histories, and its throughput with 50 executions.

Real Kafka, the proxy as a process, an engine server as a process that answers at once. The same engine, called directly
with a prompt of the same length by the client that the proxy uses, is the baseline: both are measured in turn, in the same
run. The last line is one JSON object.

added_ms_p50_2k, added_ms_p50_128k: one execution at a time, histories of 2,000 and 128,000 tokens
added_ms_p50, added_ms_p99:         50 executions at `paced_calls_per_s`: 200, or 60 % of what the proxy can do where that is less
router_added_ms_p50, _p99:          what the Rust router of SGLang (`sglang-router`) adds to the same engine at the same pace, by turns
calls_per_s:                        50 executions, each asking again as soon as it is answered
rss_mb_per_idle_execution:          resident memory of the proxy for an execution of 700,000 tokens that is not being asked
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import psutil

from gyre_engine.events.cells import CellRole, CellStarted
from gyre_engine.keys import mint
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from gyre_engine.sampling.port import Chunk, EngineError, EngineStats, FinishReason, GenerateRequest, SamplingParams
from gyre_engine.sampling.sglang import SGLangEngine
from infra.broker.broker import Broker, BrokerSettings
from producers.proxy.process import run
from producers.proxy.settings import ProxySettings
from producers.proxy.tokens import ChatTokenizer
from tests.bench.agents import REPLY, Agent, Connection, make_model_folder

ME = ("-m", "tests.bench.bench_proxy")
EXECUTIONS = 50
ROUNDS = int(os.environ.get("ROUNDS", "120"))
SECONDS = float(os.environ.get("SECONDS", "20"))
PACE, SHARE = 200.0, 0.6
LONG, LONG_TURNS, LONGS = 700_000, 350, 3


class InstantEngine:
    """Answers every prompt at once with the same ids: what is measured stands around it."""

    def __init__(self, output_ids: tuple[int, ...]) -> None:
        self._answer = Chunk(output_ids, (-0.5,) * len(output_ids), "0", FinishReason.STOP)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        yield self._answer

    async def abort(self, rid: str | None) -> None:
        """Nothing runs long enough."""

    async def stats(self) -> EngineStats:
        """Idle, always: what a health check asks."""
        return EngineStats(0, 0, 0, 1 << 30, 0, 0, 0, "0", 1 << 20)

    async def close(self) -> None:
        """Nothing is held."""


def serve_engine(folder: Path, port: int) -> None:
    from producers.cells.engine_server import serve

    tokenizer = ChatTokenizer.load(folder)
    ids = (*tokenizer.encode(REPLY), tokenizer.convert_tokens_to_ids("<|im_end|>"))
    serve(InstantEngine(ids), "127.0.0.1", port)  # type: ignore[arg-type]


def serve_proxy(folder: Path, port: int, bootstrap: str, run_name: str) -> None:
    settings = ProxySettings(folder, folder / "secret", port=port, context_limit=1 << 20)
    log = KafkaLog(KafkaSettings(bootstrap), run_name)
    run(settings, log)
    log.close()


async def one_at_a_time(make: Callable[[], Agent]) -> dict[str, float]:
    rng = random.Random(7)
    short, long = make(), make()
    await short.grow(2_000, 8, rng)
    await long.grow(128_000, 128, rng)
    print(
        f"histories: {short.prompt_tokens} and {long.prompt_tokens} tokens, "
        f"bodies of {len(orjson.dumps(short.messages))} and {len(orjson.dumps(long.messages))} bytes"
    )
    times: dict[str, list[float]] = {"2k": [], "2k alone": [], "128k": [], "128k alone": []}
    for _ in range(ROUNDS):
        for name, agent in (("2k", short), ("128k", long)):
            times[f"{name} alone"].append(await agent.directly())
            times[name].append(await agent.turn())
    for name, seconds in times.items():
        print(f"{name:>10}: p50 {1e3 * statistics.median(seconds):.2f} ms, p99 {1e3 * quantile(seconds, 0.99):.2f} ms")
    return {
        f"added_ms_p50_{name}": 1e3 * (statistics.median(times[name]) - statistics.median(times[f"{name} alone"]))
        for name in ("2k", "128k")
    }


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


async def together(make: Callable[[], Agent], router: SGLangEngine, pids: dict[str, int]) -> dict[str, float]:
    agents = [make() for _ in range(EXECUTIONS)]
    rng = random.Random(11)
    for agent in agents:
        await agent.grow(2_000, 2, rng)
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    counts = await asyncio.gather(*(closed_loop(agent, time.perf_counter() + SECONDS) for agent in agents))
    rate = sum(counts) / SECONDS
    spent = {name: 1e3 * (cpu_seconds(pid) - before[name]) / sum(counts) for name, pid in pids.items()}
    print(f"{EXECUTIONS} executions, closed loop: {rate:.0f} calls/s; CPU ms a call: {spent}")
    pace = min(PACE, SHARE * rate)
    took: dict[str, list[float]] = {"proxy": [], "router": [], "engine": []}
    for _ in range(3):
        fresh = [make() for _ in range(EXECUTIONS)]
        for agent in fresh:
            await agent.grow(2_000, 2, rng)
        turns = {
            "engine": [agent.directly for agent in fresh],
            "router": [partial(agent.directly, router) for agent in fresh],
            "proxy": [agent.turn for agent in fresh],
        }
        for name, calls in turns.items():
            took[name] += await paced(calls, EXECUTIONS / pace, SECONDS / 3)
    for name, seconds in took.items():
        print(
            f"{name} at {pace:.0f} calls/s: p50 {1e3 * statistics.median(seconds):.2f} ms, "
            f"p99 {1e3 * quantile(seconds, 0.99):.2f} ms"
        )
    found = {"calls_per_s": rate, "paced_calls_per_s": pace}
    for name, key in (("proxy", "added_ms"), ("router", "router_added_ms")):
        for at in (50, 99):
            found[f"{key}_p{at}"] = 1e3 * (quantile(took[name], at / 100) - quantile(took["engine"], at / 100))
    return found


async def idle_memory(make: Callable[[], Agent], pid: int) -> dict[str, float]:
    """Resident memory that executions of LONG tokens leave while they are not asked; what the allocator of a busy proxy keeps
    anyway stands there after a first one of them, which is not counted."""
    rng = random.Random(13)
    await make().grow(LONG, LONG_TURNS, rng)
    before = resident(pid)
    for _ in range(LONGS):
        agent = make()
        await agent.grow(LONG, LONG_TURNS, rng)
    found = (resident(pid) - before) / LONGS / 1e6
    print(f"an idle execution of {agent.prompt_tokens} tokens: {found:.1f} MB")
    return {"rss_mb_per_idle_execution": found}


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def closed_loop(agent: Agent, until: float) -> int:
    count = 0
    while time.perf_counter() < until:
        await agent.turn()
        count += 1
        if count % 20 == 0:
            agent.messages = agent.messages[:2]
    return count


async def paced(calls: list[Callable[[], Awaitable[float]]], period: float, seconds: float) -> list[float]:
    """Each caller calls once a period, spread evenly."""

    async def loop(index: int) -> list[float]:
        begin, found = time.perf_counter() + period * index / len(calls), []
        for number in range(max(1, int(seconds / period))):
            await asyncio.sleep(max(0.0, begin + number * period - time.perf_counter()))
            found.append(await calls[index]())
        return found

    return [took for found in await asyncio.gather(*(loop(index) for index in range(len(calls)))) for took in found]


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """A process of this bench, or of a module; its pid."""
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answers(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError(f"nothing listens on {port} after 60 s")


async def routed(port: int) -> SGLangEngine:
    """The engine behind the router, once the router has found it."""
    await answers(port)
    engine = SGLangEngine(f"http://127.0.0.1:{port}")
    until = time.monotonic() + 60
    while True:
        try:
            async for _ in engine.generate(GenerateRequest("warm", [1, 2, 3], SamplingParams())):
                pass
            return engine
        except EngineError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)


async def measure(ports: dict[str, int], pids: dict[str, int], secret: bytes, tokenizer: ChatTokenizer) -> dict[str, float]:
    await answers(ports["engine"])
    await answers(ports["proxy"])
    engine, router = SGLangEngine(f"http://127.0.0.1:{ports['engine']}"), await routed(ports["router"])
    proxy = ports["proxy"]
    numbers = iter(range(1 << 30))

    def make() -> Agent:
        return Agent(Connection(proxy, mint(secret, f"bench.{next(numbers)}.0")), engine, tokenizer)

    warm = make()
    await warm.grow(500, 2, random.Random(1))
    for _ in range(100):
        await warm.turn()
        await warm.directly()
    found = await one_at_a_time(make)
    found |= await together(make, router, pids)
    found |= await idle_memory(make, pids["proxy"])
    await engine.close()
    await router.close()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name, Broker(BrokerSettings(Path(name) / "broker")) as broker:
        folder = Path(name) / "model"
        folder.mkdir()
        tokenizer, secret = make_model_folder(folder), secrets.token_hex(16).encode()
        (folder / "secret").write_bytes(secret)
        settings = KafkaSettings(broker.bootstrap_servers)
        ensure_topics(settings, "bench")
        ports = {name: free_port() for name in ("engine", "proxy", "router", "metrics")}
        log = KafkaLog(settings, "bench")
        log.append_all(
            [
                CellStarted(
                    cell="cell-0",
                    position=0,
                    incarnation="1",
                    engine="scripted",
                    engine_url=f"http://127.0.0.1:{ports['engine']}",
                    capacity=1000,
                    role=CellRole.SAMPLING,
                    weight_version=0,
                )
            ]
        )
        with (
            process(*ME, "engine", str(folder), str(ports["engine"])) as engine,
            process(*ME, "proxy", str(folder), str(ports["proxy"]), broker.bootstrap_servers, "bench") as proxy,
            process(
                "-m", "sglang_router.launch_router", "--worker-urls", f"http://127.0.0.1:{ports['engine']}",
                "--host", "127.0.0.1", "--port", str(ports["router"]), "--prometheus-port", str(ports["metrics"]),
                "--policy", "round_robin", "--log-level", "error",
            ),
        ):  # fmt: skip
            pids = {"engine": engine, "proxy": proxy, "client": os.getpid()}
            found = asyncio.run(measure(ports, pids, secret, tokenizer))
        log.close()
    print(orjson.dumps({key: round(value, 3) for key, value in found.items()}).decode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        serve_engine(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["proxy"]:
        serve_proxy(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    else:
        main()
