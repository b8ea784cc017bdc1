"""A burst that the core trains alone, against the same burst with a satellite that joins halfway (method.md, 3).

Real trainer processes, one thread each, on a real Kafka: the core opens the step from admitted groups and their model calls; when
half of the time has passed that it needed alone, the satellite's cell is told to train: it reads the weights, joins the running step,
claims from the same queue, seals; the core reads its gradients, merges and commits. Each pair trains the same executions.

core_only_s       from step-opened to step-committed, the core alone; median of the pairs
with_satellite_s  the same with the satellite
ideal_s           0.75 x core_only_s: the second half at twice the speed. Bar: with_satellite_s <= 1.2 x ideal_s

Both members need a core of the machine to themselves: run it with nothing else. The last line is one JSON object.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event as EventOfProcesses
from pathlib import Path

import numpy as np

from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events import Event, Recorded
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.calls import Continuity, ExecutionClosed, Finish, InputSpan, ModelCall, Provenance, ProxyOwns, WeightSpan
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged, SchedulerElected
from gyre_engine.events.training import (
    AdmittedExecution,
    GroupAdmitted,
    MemberJoined,
    Published,
    Sealed,
    SelectedTrajectory,
    StepCommitted,
    StepOpened,
)
from gyre_engine.log.consumer import serve
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.scheduling.classes import ClassPlan
from infra.broker.broker import Broker, BrokerSettings

PAIRS = int(os.environ.get("PAIRS", "3"))
GROUPS, SIZE = int(os.environ.get("BATCH", "12")), 8
PROMPT, OUTPUT = 384, 640
LIMIT_S = 300.0
PLAN = ClassPlan(GROUPS, 1, 0, 1)
CORE, SATELLITE = "cell-0", "cell-1"


def settings(cell: str, model: str, folder: str) -> TrainerSettings:
    return TrainerSettings(
        cell=cell, core=cell == CORE, holder=cell, model_path=model, plan=PLAN, packing=Packing(PROMPT + OUTPUT, 4096),
        lease_s=60.0, checkpoint_url=f"file://{folder}/checkpoints", checkpoint_every=0,
    )  # fmt: skip


def train(cell: str, has_read: EventOfProcesses, servers: str, run: str, model: str, folder: str) -> None:
    """A trainer process. has_read: set once it has read what stood on the log when it started."""
    from consumers.trainer.process import Trainer, replica_of

    class Telling(Trainer):
        def caught_up(self) -> None:
            super().caught_up()
            has_read.set()

    own = settings(cell, model, folder)
    replica = replica_of(own)
    serve(Telling(own, KafkaLog(KafkaSettings(servers), run), replica))


def burst() -> Iterator[Event]:
    """Groups of executions of one call each, as the proxy and admission put them on the log; half of them are rewarded."""
    rng = np.random.default_rng(11)
    for number in range(GROUPS):
        admitted = []
        for index in range(SIZE):
            name = f"g{number}.{index}.0"
            yield ProxyOwns(execution=name, owner_epoch=1, proxy="bench")
            yield _call(name, rng)
            yield ExecutionClosed(execution=name, owner_epoch=1, calls=1, last_call=f"{name}-0", held_us=0, errors=0)
            admitted.append(
                AdmittedExecution(
                    execution=name, index=index, score=f"s-{name}", reward=float(index % 2), advantage=1.0 if index % 2 else -1.0,
                    trained_tokens=OUTPUT, trajectories=(SelectedTrajectory(f"{name}-0", "main", OUTPUT),), left_out=(),
                    min_version=0,
                )
            )  # fmt: skip
        yield GroupAdmitted(
            group=f"g{number}", group_number=number, class_number=0, query="q", dispatched_version=0, mean=0.5, deviation=0.5,
            trains=True, reason="", executions=tuple(admitted), left_out=(),
        )  # fmt: skip


def _call(name: str, rng: np.random.Generator) -> ModelCall:
    return ModelCall(
        execution=name, call=f"{name}-0", number=0, owner_epoch=1, parent=None, prefix_len=0, prefix_hash=b"",
        new_input_ids=rng.integers(0, QUICKSTART.vocab, PROMPT, dtype=np.int32),
        output_ids=rng.integers(0, QUICKSTART.vocab, OUTPUT, dtype=np.int32),
        logprobs=-rng.random(OUTPUT, dtype=np.float32), weight_spans=(WeightSpan(0, 0, CORE),),
        input_spans=(InputSpan(0, Provenance.USER),), finish=Finish.STOP, continuity=Continuity.ROOT, dialect="chat",
        temperature=1.0, top_p=1.0, max_tokens=OUTPUT, tools=0, messages=1, shape="s",
    )  # fmt: skip


class Follower:
    """What the ledger has said so far."""

    def __init__(self, log: KafkaLog) -> None:
        self._follower = log.follow(("training",))
        self.seen: list[Recorded] = []

    def first(self, kind: type[Event]) -> Recorded:
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            found = next((record for record in self.seen if isinstance(record.event, kind)), None)
            if found is not None:
                return found
            self.seen += self._follower.poll(0.05)
        raise TimeoutError(f"no {kind.__name__} on the ledger within {LIMIT_S:.0f} s")


@contextmanager
def trainers(context: ForkServerContext, cells: list[str], *given: str) -> Iterator[None]:
    """They run inside, and have read the log."""
    have_read = {cell: context.Event() for cell in cells}
    processes = [
        context.Process(target=train, args=(cell, has_read, *given), daemon=True) for cell, has_read in have_read.items()
    ]
    for process in processes:
        process.start()
    try:
        for cell, has_read in have_read.items():
            if not has_read.wait(LIMIT_S):
                raise TimeoutError(f"the trainer of {cell} has not read the log within {LIMIT_S:.0f} s")
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join(30)


def role(cell: str, to: CellRole) -> RoleChanged:
    return RoleChanged(cell=cell, incarnation="i", role=to, command_epoch=1, command_number=1)


def started(cell: str) -> CellStarted:
    return CellStarted(
        cell=cell, position=int(cell[-1]), incarnation="i", engine="none", engine_url="", capacity=1, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip


def one(context: ForkServerContext, servers: str, run: str, model: str, folder: str, joins_after_s: float | None) -> float:
    """Seconds of the burst. `joins_after_s`: when the satellite's cell is told to train, from the step's opening."""
    kafka = KafkaSettings(servers)
    ensure_topics(kafka, run)
    log = KafkaLog(kafka, run)
    cells = [CORE] if joins_after_s is None else [CORE, SATELLITE]
    log.append_all([*burst(), *map(started, cells)])
    try:
        with trainers(context, cells, servers, run, model, f"{folder}/{run}"):
            ledger = Follower(log)
            ledger.first(Published)
            begin = BeginBurst(epoch=1, number=1, step=0, reason="", water_level=0, sampling_capacity=0)
            log.append_all([SchedulerElected(epoch=1, holder="bench"), role(CORE, CellRole.TRAINING), begin])
            opened = ledger.first(StepOpened)
            if joins_after_s is not None:
                time.sleep(max(0.0, opened.at / 1e6 + joins_after_s - time.time()))
                log.append_all([role(SATELLITE, CellRole.TRAINING)])
            committed = ledger.first(StepCommitted)
            say(run, ledger, opened.at)
            return (committed.at - opened.at) / 1e6
    finally:
        log.close()


def say(run: str, ledger: Follower, opened: int) -> None:
    since: Callable[[Recorded], str] = lambda record: f"{(record.at - opened) / 1e6:.1f}"  # noqa: E731
    for record in ledger.seen:
        match record.event:
            case MemberJoined() as event:
                print(f"  {run}: {event.cell} joined after {since(record)} s", flush=True)
            case Sealed() as event:
                print(f"  {run}: {event.cell} sealed {len(event.micro_steps)} micro-steps after {since(record)} s", flush=True)
            case StepCommitted():
                print(f"  {run}: committed after {since(record)} s", flush=True)
            case _:
                pass


def main() -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gyre_engine.training.model.megatron", "consumers.trainer.process"])
    alone, joined = [], []
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name, Broker(BrokerSettings(Path(name, "kafka"))) as broker:
        model = str(write_fresh_model(Path(name, "model"), QUICKSTART, seed=3))
        for pair in range(PAIRS):
            alone.append(one(context, broker.bootstrap_servers, f"alone{pair}", model, name, None))
            half = alone[-1] / 2
            joined.append(one(context, broker.bootstrap_servers, f"joined{pair}", model, name, half))
    core_only, with_satellite = statistics.median(alone), statistics.median(joined)
    ideal = 0.75 * core_only
    print(f"a micro-step has {PROMPT + OUTPUT} tokens, the burst {GROUPS * SIZE}; pairs {list(zip(alone, joined, strict=True))}")
    print(
        json.dumps(
            {
                "core_only_s": round(core_only, 3),
                "with_satellite_s": round(with_satellite, 3),
                "ideal_s": round(ideal, 3),
                "with_satellite_over_ideal": round(with_satellite / ideal, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
