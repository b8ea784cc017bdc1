"""Fuzzed requests against the proxy as a process, on real Kafka, before an engine that answers anything.

Each request must end as a refusal in its dialect's own shape or as a recorded call. The last line is one JSON object; the exit
status is 1 where a request ended otherwise or the process grew.

SEED, COUNT: which requests, and how many (100,000); the same seed asks the same
ONLY:        a number: this execution's requests alone, to see again what it reported

refused:    4xx in the dialect's shape; recorded: whole answers of model calls; joined: of these, those that share another's record
dropped:    the fuzzer went away, or sent less than it said; other: lists of models, counts of tokens, signs of life
misshapen:  neither a 5xx nor what its dialect says; unrecorded: answers without a record on the log
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from gyre_engine.events.calls import ExecutionClosed, Finish, ModelCall
from gyre_engine.events.cells import CellRole, CellStarted
from gyre_engine.keys import internal_token, mint
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from infra.broker.broker import Broker, BrokerSettings
from producers.proxy.process import run as serve
from producers.proxy.settings import ProxySettings
from tests.bench.agents import make_model_folder
from tests.bench.bench_proxy import answers, free_port
from tests.fuzz.answers import call_of, heard, verdict
from tests.fuzz.cases import Case, cases, headers, huge_cases
from tests.fuzz.conversations import PATHS, new_talk
from tests.fuzz.engine import serve_engine
from tests.fuzz.wire import Connection, Request, Response

SEED = int(os.environ.get("SEED") or 0)
COUNT = int(os.environ.get("COUNT") or 100_000)
ONLY = os.environ.get("ONLY")
WORKERS = 48
REQUESTS = 24
"""Requests of an execution, until its runner closes it."""
GROWS_MB = 64
SHOWN = 40
"""Faults that are told whole."""
GOOD = ("recorded", "refused", "other", "dropped")


@dataclass
class Tally:
    """What came of the requests.

    ids:    of records that whole answers named
    closed: executions, with the calls that closing them told
    """

    port: int
    secret: bytes
    pid: int
    executions: Iterator[int]
    requests: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    by_dialect: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in PATHS})
    ids: set[str] = field(default_factory=set)
    closed: dict[str, int] = field(default_factory=dict)
    rss_first: float = 0.0

    def take(self, name: str, dialect: str, case: Case, found: Response) -> str:
        """Judge one answer, and tell what is wrong."""
        word = verdict(case.request, found)
        kind = word if word in (*GOOD, "hang") else "misshapen" if word.startswith("misshapen") else "server error"
        self.requests += 1
        self.verdicts[kind] += 1
        self.by_dialect[dialect][kind] += 1
        if kind not in GOOD:
            self._tell(name, case, word, found)
        if word == "recorded" and (call := call_of(found)):
            self.ids.add(call)
        if self.requests % 5000 == 0:
            print(f"{self.requests} requests, {rss_mb(self.pid):.0f} MB: {dict(self.verdicts)}", flush=True)
        if not self.rss_first and self.requests >= COUNT // 10:
            self.rss_first = rss_mb(self.pid)
        return word

    def _tell(self, name: str, case: Case, word: str, found: Response) -> None:
        if sum(self.verdicts[kind] for kind in self.verdicts if kind not in GOOD) <= SHOWN:
            request = case.request
            print(
                f"FAULT {name} [{', '.join(case.done) or 'valid'}]: {word}\n  {request.method} {request.target[:80]} {request.framing}"
            )
            print(
                f"  sent: {request.body[:1500]!r}{'...' if len(request.body) > 1500 else ''}\n  came: {found.body[:300]!r}",
                flush=True,
            )
            if folder := os.environ.get("FAULTS"):
                Path(folder, f"{name}-{self.requests}").write_bytes(request.written())


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def execution(tally: Tally, number: int, connections: list[Connection]) -> None:
    """One execution's requests; then it is closed, and its key used once more."""
    rng = random.Random(f"{SEED} {number}")
    name, talk = f"fuzz{SEED}.{number}.0", new_talk(rng)
    key = mint(tally.secret, name)
    for case in huge_cases(talk, key) if number < 3 else cases(talk, key, REQUESTS):
        sends = [connections[at].ask(case.request) for at in range(case.twins)]
        for found in await asyncio.gather(*sends):
            word = tally.take(name, talk.dialect, case, found)
        if case.request.drop is not None:  # who was cut off asks the same again
            await asyncio.sleep(rng.choice((0, 0.1, 0.4)))
            again = replace(case, request=replace(case.request, drop=None), valid=True)
            found = await connections[0].ask(again.request)
            word = tally.take(name, talk.dialect, again, found)
        if (case.valid or case.request.drop is not None) and word == "recorded" and talk.turns < 12:
            talk.take(heard(talk.dialect, found))
    await _close(tally, name, connections[0])
    late = Case(Request("POST", PATHS[talk.dialect], headers(talk.dialect, key), orjson.dumps(talk.body())), ("a closed key",))
    found = await connections[0].ask(late.request)
    if found.status == 200:
        raise AssertionError(f"{name} is closed and was answered: {found.body[:200]!r}")
    tally.take(name, talk.dialect, late, found)


async def _close(tally: Tally, name: str, connection: Connection) -> None:
    """As the runner closes it."""
    head = (f"authorization: Bearer {internal_token(tally.secret)}",)
    found = await connection.ask(Request("POST", f"/internal/executions/{name}/close", head))
    if found.status != 200:
        raise AssertionError(f"closing {name}: {found.status} {found.end} {found.body[:300]!r}")
    tally.closed[name] = orjson.loads(found.body)["calls"]


async def worker(tally: Tally) -> None:
    """Executions one after the other, until there were enough requests."""
    connections = [Connection(tally.port) for _ in range(3)]
    while tally.requests < COUNT:
        number = next(tally.executions, None)
        if number is None:
            break
        await execution(tally, number, connections)
    for connection in connections:
        connection.close()


async def fuzz(tally: Tally) -> int:
    """Run them all; how many answers the proxy says were joined."""
    await answers(tally.port)
    await asyncio.gather(*[worker(tally) for _ in range(WORKERS)])
    health = await Connection(tally.port).ask(Request("GET", "/healthz", ()))
    print(f"healthz: {health.body.decode()}")
    return int(orjson.loads(health.body)["joined"])


def unrecorded(tally: Tally, log: KafkaLog, joined: int) -> int:
    """Answers that the log does not know: named ones that are not there, more answers than records, closings that count wrongly."""
    calls: Counter[str] = Counter()
    told: dict[str, int] = {}
    finishes: Counter[Finish] = Counter()
    ids = set()
    for record in log.read("model-calls"):
        match record.event:
            case ModelCall() as call:
                calls[call.execution] += 1
                ids.add(call.call)
                finishes[call.finish] += 1
            case ExecutionClosed() as closed:
                told[closed.execution] = closed.calls
            case _:
                pass
    wrong = [name for name, count in tally.closed.items() if not count == told.get(name) == calls[name]]
    answered = sum(count for finish, count in finishes.items() if finish not in (Finish.CANCELLED, Finish.ERROR))
    missing = max(0, tally.verdicts["recorded"] - joined - answered)
    print(f"the log: {sum(calls.values())} calls, by finish {dict(finishes)}; wrong closings {wrong[:9]}")
    print(f"named but not there: {sorted(tally.ids - ids)[:9]}")
    return len(tally.ids - ids) + missing + len(wrong)


def serve_proxy(folder: Path, port: int, bootstrap: str) -> None:
    """The proxy as `gyre` starts it, until SIGTERM."""
    log = KafkaLog(KafkaSettings(bootstrap), "fuzz")
    serve(ProxySettings(folder, folder / "secret", port=port), log)
    log.close()


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-m", "tests.fuzz.fuzz_proxy", *arguments])
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


def run(folder: Path, bootstrap: str) -> dict[str, Any]:
    """The whole run, and its numbers."""
    (folder / "model").mkdir()
    make_model_folder(folder / "model")
    secret = secrets.token_hex(16).encode()
    (folder / "model" / "secret").write_bytes(secret)
    settings = KafkaSettings(bootstrap)
    ensure_topics(settings, "fuzz")
    log = KafkaLog(settings, "fuzz")
    engine, port = free_port(), free_port()
    log.append_all([_cell(f"http://127.0.0.1:{engine}")])
    numbers = iter([int(ONLY)]) if ONLY else iter(range(1 << 30))
    with (
        process("engine", str(folder / "model"), str(engine)),
        process("proxy", str(folder / "model"), str(port), bootstrap) as proxy,
    ):
        asyncio.run(answers(engine))
        tally, begin = Tally(port, secret, proxy.pid, numbers), time.monotonic()
        joined = asyncio.run(fuzz(tally))
        numbers_of = _numbers(tally, joined, rss_mb(proxy.pid), time.monotonic() - begin)
    numbers_of["unrecorded"] = unrecorded(tally, log, joined)
    log.close()
    return numbers_of


def _cell(url: str) -> CellStarted:
    fields = {"cell": "cell-0", "position": 0, "incarnation": "1", "engine": "scripted", "engine_url": url, "capacity": 1000}
    return CellStarted(**fields, role=CellRole.SAMPLING, weight_version=0)  # type: ignore[arg-type]


def _numbers(tally: Tally, joined: int, rss_last: float, seconds: float) -> dict[str, Any]:
    counts = tally.verdicts
    return {
        "requests": tally.requests,
        "server_errors": counts["server error"],
        "hangs": counts["hang"],
        "misshapen": counts["misshapen"],
        "unrecorded": 0,
        "refused": counts["refused"],
        "recorded": counts["recorded"],
        "joined": joined,
        "dropped": counts["dropped"],
        "other": counts["other"],
        "rss_mb_first": round(tally.rss_first, 1),
        "rss_mb_last": round(rss_last, 1),
        "by_dialect": {name: dict(found) for name, found in tally.by_dialect.items()},
        "seed": SEED,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gyre-fuzz-") as name, Broker(BrokerSettings(Path(name) / "broker")) as broker:
        found = run(Path(name), broker.bootstrap_servers)
    grown = found["rss_mb_last"] - found["rss_mb_first"] > GROWS_MB and not ONLY
    print(orjson.dumps(found).decode())
    return int(grown or any(found[name] for name in ("server_errors", "hangs", "misshapen", "unrecorded")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        serve_engine(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["proxy"]:
        serve_proxy(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
