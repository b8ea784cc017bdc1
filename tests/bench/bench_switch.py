"""Role switches under load: how long each direction takes, and whether an agent or a token notices.

Real Kafka; the proxy, three native engines and their agents as processes; 40 executions that call all the time. The bench commands the
switches as a scheduler does (the real answer to drains, `gyre_engine.scheduling.moving`), always of the cells that hold the most
executions, and publishes new weights now and then, which cells load before they sample again. No trainer runs: a cell that trains
waits to join. The last line is one JSON object:

to_training_ms_p50, _p99   from the command's event to the cell's `role-changed` to training: drained, KV read by others, freed
to_sampling_ms_p50, _p99   from the command's event to `role-changed` to sampling: weights pulled and loaded where there are new ones
switches                   role changes that were commanded and happened
agent_errors               answers of the proxy that are not 200
tokens_lost                tokens that engines sampled and no record holds, plus tokens that records hold and no engine sampled
interrupted, moved_with_kv requests that switches cut in two; those of them whose KV was read by the cell where they went on
kv_tokens_moved            tokens of context that were not computed again because of that
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    Drained,
    KvImported,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.keys import mint
from gyre_engine.lifeline import die_with_parent
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.moving import Moving
from gyre_engine.transfer import Region
from gyre_engine.transfer.tcp import TcpTransfer
from infra.broker.broker import Broker, BrokerSettings
from producers.cells.process import run as run_agent
from producers.cells.settings import AgentSettings
from producers.proxy.process import run as run_proxy
from producers.proxy.settings import ProxySettings, RunSampling
from tests.bench.agents import Connection
from tests.bench.bench_proxy import answers, free_port, quantile

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"
CELLS, EXECUTIONS = 3, 40
SWITCHES = int(os.environ.get("SWITCHES", "300"))
PUBLISH_EVERY, BETWEEN = 10, 2
LIMIT_S = 60.0
"""The longest wait for one switch."""
RUN = "bench"


def serve_proxy(folder: str, port: int, servers: str) -> None:
    log = KafkaLog(KafkaSettings(servers), RUN)
    sampling = RunSampling(max_tokens=160)
    settings = ProxySettings(MODEL, Path(folder) / "secret", port=port, context_limit=16_384, sampling=sampling)
    run_proxy(settings, log)
    log.close()


def serve_agent(folder: str, position: int, url: str, servers: str) -> None:
    log = KafkaLog(KafkaSettings(servers), RUN)
    run_agent(
        AgentSettings(
            cell=f"cell-{position}", position=position, incarnation=secrets.token_hex(4), engine="native", engine_url=url,
            capacity=EXECUTIONS, model_path=str(MODEL), scratch=f"{folder}/scratch-{position}",
            plan=ClassPlan(batch=1, mu=1, phi=0, steps=1_000_000), secret=(Path(folder) / "secret").read_bytes(),
        ),
        log,
    )  # fmt: skip
    log.close()


def serve_engine(port: int, secret: bytes) -> None:
    from producers.cells.engine_server import run_engine_server

    run_engine_server(
        str(MODEL), "0", host="127.0.0.1", port=port, kv_capacity=262_144, max_batch=64, paused=True, kv_secret=secret
    )


@contextmanager
def child(target: Any, *arguments: Any) -> Iterator[None]:
    """A process that ends with this one, whatever ends it."""
    process = multiprocessing.get_context("spawn").Process(target=_tied, args=(os.getpid(), target, *arguments))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join(20)


def _tied(parent: int, target: Any, *arguments: Any) -> None:
    die_with_parent(parent)
    target(*arguments)


@dataclass
class Executions:
    """Agents that ask on and on, each with a history of its own."""

    port: int
    secret: bytes
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    errors: int = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._one(number) for number in range(EXECUTIONS)))

    async def _one(self, number: int) -> None:
        connection = Connection(self.port, mint(self.secret, f"e{number}.0.0"))
        task = f"Write a function number {number} that adds its arguments, then test it. " * 20
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        while not self.stop.is_set():
            try:
                answer = await connection.ask(orjson.dumps({"model": "policy", "messages": messages}))
            except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
                print(f"error: {error}", flush=True)
                self.errors += 1
                return
            self.calls += 1
            message = answer["choices"][0]["message"]
            asked = message.get("tool_calls") or []
            said = [{"role": "tool", "tool_call_id": call["id"], "content": "ok " * 80} for call in asked]
            messages += [message, *(said or [{"role": "user", "content": "go on " * 40}])]
            if answer["usage"]["prompt_tokens"] > 4_000:
                messages = messages[:1]


@dataclass
class Commander:
    """The scheduler's side: one command after the other, and the answers to drains."""

    log: KafkaLog
    transfer: TcpTransfer
    fleet: Fleet = field(default_factory=Fleet)
    moving: Moving = field(default_factory=Moving)
    sent: dict[tuple[int, int], tuple[float, CellRole]] = field(default_factory=dict)
    took: dict[CellRole, list[float]] = field(default_factory=lambda: {CellRole.TRAINING: [], CellRole.SAMPLING: []})
    interrupted: int = 0
    with_kv: int = 0
    kv_tokens: int = 0
    version: int = 0
    number: int = 0
    busiest: str = f"cell-{CELLS - 1}"
    """Where the last drain sent most of its executions."""
    stopped: bool = False

    def __post_init__(self) -> None:
        self.follower = self.log.follow(["cells", "commands"])
        self.image = np.frombuffer((MODEL / "model.safetensors").read_bytes(), dtype=np.uint8).copy()
        self.say(SchedulerElected(epoch=1, holder="bench"), CoreElected(core_epoch=1, holder="bench", cell="cell-0"))

    def say(self, *events: Event) -> None:
        self.log.append_all(list(events))

    def started(self) -> bool:
        self._read()
        return len(self.fleet.cells) == CELLS

    def publish(self) -> None:
        """The same weights under the next version: what is measured is how they get to the engine."""
        self.version += 1
        descriptor = self.transfer.register(Region.of_array(self.image))
        nothing = np.zeros(0, np.int32)
        self.say(
            Published(
                core_epoch=1, version=self.version, weights_hash=hashlib.sha256(self.image.data).hexdigest(),
                descriptor=descriptor.to_bytes(), nbytes=self.image.nbytes, probe_ids=nothing,
                probe_logprobs=np.zeros(0, np.float32),
            )
        )  # fmt: skip

    def switch(self, cell: str, to: CellRole) -> None:
        """Command it, and wait until it is done."""
        self.number += 1
        command = SwitchRole(epoch=1, number=self.number, cell=cell, to=to, reason="bench", water_level=0, sampling_capacity=0)
        self.sent[1, self.number] = (time.time(), to)
        self.say(command)
        key, limit = (1, self.number), time.monotonic() + LIMIT_S
        while key in self.sent:
            self._read()
            if time.monotonic() > limit:
                raise TimeoutError(f"{cell} did not become {to} within {LIMIT_S:.0f} s")

    def _read(self) -> None:
        if self.stopped:
            raise InterruptedError("the bench was ended")
        for record in self.follower.poll(0.2):
            event = record.event
            self.fleet = observe(self.fleet, event)
            self.moving.see(event, self.fleet.epoch)
            match event:
                case Drained():
                    self.interrupted += len(event.requests)
                case KvImported() if event.tokens:
                    self.with_kv += 1
                    self.kv_tokens += event.tokens
                case RoleChanged():
                    self._arrived(event, record.at / 1e6)
                case CellHealth(healthy=False):
                    print(f"{event}"[:200], flush=True)
                case _:
                    pass
        moves = self.moving.due(self.fleet, 1, self.number + 1)
        if moves is not None:
            self.number += 1
            self.say(moves)
            if moves.moves:
                self.busiest = Counter(move.destination for move in moves.moves).most_common(1)[0][0]
            while self.moving.waits(moves.source):
                for record in self.follower.poll(0.2):
                    self.fleet = observe(self.fleet, record.event)
                    self.moving.see(record.event, self.fleet.epoch)

    def _arrived(self, event: RoleChanged, at: float) -> None:
        began, to = self.sent.pop((event.command_epoch, event.command_number), (0.0, event.role))
        if began:
            self.took[to].append(1e3 * (at - began))

    def circle(self, switches: int, executions: Executions) -> None:
        """Two cells leave and come back, each time those that hold the most executions, which is the hardest. Calls end in between."""
        away: list[str] = []
        for number in range(switches):
            if number % PUBLISH_EVERY == 2:
                self.publish()
            if number % 4 < 2:
                away.append(self._next())
                self.switch(away[-1], CellRole.TRAINING)
            else:
                self.switch(away.pop(), CellRole.SAMPLING)
            until, limit = executions.calls + BETWEEN, time.monotonic() + LIMIT_S
            while executions.calls < until and time.monotonic() < limit:
                self._read()

    def _next(self) -> str:
        serving = [cell.cell for cell in self.fleet.serving]
        return self.busiest if self.busiest in serving else serving[0]


async def sampled(urls: list[str]) -> int:
    """Tokens that the engines have sampled, by their own counters."""
    total = 0
    for url in urls:
        engine = SGLangEngine(url)
        total += (await engine.stats()).generated_tokens
        await engine.close()
    return total


async def measure(log: KafkaLog, transfer: TcpTransfer, port: int, urls: list[str], secret: bytes) -> dict[str, float]:
    await answers(port)
    commander, executions = Commander(log, transfer), Executions(port, secret)
    while not await asyncio.to_thread(commander.started):
        pass
    running = asyncio.create_task(executions.run())
    while executions.calls < EXECUTIONS:
        await asyncio.sleep(0.05)
    began = time.monotonic()
    try:
        await asyncio.to_thread(commander.circle, SWITCHES, executions)
    finally:
        commander.stopped = True
    print(f"{SWITCHES} switches in {time.monotonic() - began:.0f} s, {executions.calls} calls", flush=True)
    executions.stop.set()
    await running
    recorded = sum(len(r.event.output_ids) for r in log.read("model-calls") if isinstance(r.event, ModelCall))
    lost = abs(await sampled(urls) - recorded)
    found: dict[str, float] = {"switches": len(commander.took[CellRole.TRAINING]) + len(commander.took[CellRole.SAMPLING])}
    for role, name in ((CellRole.TRAINING, "to_training"), (CellRole.SAMPLING, "to_sampling")):
        for at in (50, 99):
            found[f"{name}_ms_p{at}"] = round(quantile(commander.took[role], at / 100), 1)
    return found | {
        "agent_errors": executions.errors, "tokens_lost": lost, "calls": executions.calls, "tokens": recorded,
        "interrupted": commander.interrupted, "moved_with_kv": commander.with_kv, "kv_tokens_moved": commander.kv_tokens,
    }  # fmt: skip


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end unwinds: no process is left behind
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gyre-bench-"))
        broker = stack.enter_context(Broker(BrokerSettings(Path(folder) / "broker")))
        secret = secrets.token_hex(16).encode()
        (Path(folder) / "secret").write_bytes(secret)
        settings = KafkaSettings(broker.bootstrap_servers)
        ensure_topics(settings, RUN)
        log = KafkaLog(settings, RUN)
        transfer = TcpTransfer(secret=secret)
        port, ports = free_port(), [free_port() for _ in range(CELLS)]
        urls = [f"http://127.0.0.1:{number}" for number in ports]
        stack.enter_context(child(serve_proxy, folder, port, broker.bootstrap_servers))
        for position, url in enumerate(urls):
            stack.enter_context(child(serve_engine, ports[position], secret))
            stack.enter_context(child(serve_agent, folder, position, url, broker.bootstrap_servers))
        found = asyncio.run(measure(log, transfer, port, urls, secret))
        transfer.close()
        log.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
