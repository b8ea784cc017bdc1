"""The policies live: `paper`, `async` and `colocate` on identical executions, at equal maximum staleness.

Each run has a whole stack: real Kafka, proxy, runner, streams, scoring, scheduler, cell agents, and trainers on Megatron with the
quickstart's model, over MU x BURSTS steps on K = 4 cells that serve C_e = 8 executions each. What is stretched, so that two cores
are enough for four cells, is the devices' time alone (policies_cells.py): an answer takes 0.15 s a piece of 9 tokens, a micro-step
1 s for 375 packed tokens. An execution makes 2 to 12 turns of one answer each. Their number is drawn by seed: a lognormal that the
executions of a group share in part, whose long tail the limit cuts, as NL2RepoBench's is. The same seed gives every policy the same
executions.

The setting is the one that fits the paper's 2.4T run: phi 0, mu 4 (maximum staleness 3); a burst's longest execution, its sampling
and its training, the latter two spread over all cells, are about as 4 : 2.2 : 3.6. `async` gets the split that is best here, two of
four.

The last line is one JSON object. Of each policy's seeds the means:

X_seconds        of policy X, from the first dispatch to the last commit, by the events' times; the stack is up before
paper_over_X     mean over the seeds of X's seconds / paper's seconds with the same seed
X_utilisation    (sum over requests of their time in an engine / C_e + sum of micro-steps' times) / (K x seconds); a request's time
                 in an engine that left counts, since what it sampled there is kept. `utilisation` is paper's.
overlap          of paper: time in which a cell computes a micro-step while another cell's engine serves a request / time in which a
                 cell computes a micro-step
staleness_max    the largest of all runs; staleness_mean_X: mean over the steps
switches_X       role changes a run

What can be set, with its default: SEEDS=0,1,2 POLICIES=paper,async,colocate BURSTS=2 MU=4 PHI=0 TRAINING_CELLS=2.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gyre_engine.config import Config, load_config
from gyre_engine.events import Recorded
from gyre_engine.events.cells import CellStarted, RoleChanged
from gyre_engine.events.executions import Dispatched, Finished
from gyre_engine.events.training import Published, StepCommitted, StepOpened
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.runs import start_run
from gyre_engine.log.topics import ensure_topics
from infra.broker.broker import Broker, BrokerSettings
from infra.stack import session as stack
from infra.stack.cells import PRELOADERS, TRAINERS
from infra.stack.checks import check_before_start
from infra.stack.health import forget, reported
from infra.stack.layout import StackFolder
from infra.stack.processes import run_processes
from infra.supervisor.spec import ProcessSpec, State
from infra.supervisor.supervisor import Supervisor
from tests.bench.policies_cells import PIECE_IDS, PIECE_S, TOKENS_PER_S, Busy, notes

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "quickstart" / "model"
AGENT = Path(__file__).with_name("policies_agent.py")
CELLS, CAPACITY, GROUPS, SIZE = 4, 8, 2, 4
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "0,1,2").split(",")]
NAMES = os.environ.get("POLICIES", "paper,async,colocate").split(",")
MU, PHI = int(os.environ.get("MU", "4")), int(os.environ.get("PHI", "0"))
STEPS = MU * int(os.environ.get("BURSTS", "2"))
TRAINING_CELLS = int(os.environ.get("TRAINING_CELLS", "2"))
LEAST, MOST = 2, 12
UP_LIMIT_S = 180.0
ANSWER = "I have read the file and the failing test, and I change the line that reads past the end"


def turns(seed: int) -> list[list[int]]:
    """Of each execution, by group and index: lognormal around 6.5, two thirds of the deviation shared by the group."""
    rng = random.Random(f"policies-{seed}")
    table = []
    for _ in range(STEPS * GROUPS):
        shared = rng.gauss(0.0, 0.55)
        drawn = [math.exp(math.log(6.5) + shared + rng.gauss(0.0, 0.35)) for _ in range(SIZE)]
        table.append([min(MOST, max(LEAST, round(value))) for value in drawn])
    return table


EXPERIMENT = """
[run]
name = "{policy}-{seed}"
steps = {steps}
seed = {seed}
checkpoint_every = 0
[model]
path = "{model}"
renderer = "qwen3"
context = 1024
[sampling]
max_tokens = 64
[cells]
count = {cells}
capacity = {capacity}
engine = "scripted"
script = "script.toml"
[kafka]
bootstrap_servers = "{servers}"
allow_weak = true
replication = 1
[clickhouse]
enabled = false
[runner]
max_concurrent = 64
sandbox = "none"
[harness]
name = "command"
command = "exec {python} -I -S {agent} {folder}/table.json"
[[data]]
path = "tasks"
[batch]
groups = {groups}
group_size = {size}
mu = {mu}
phi = {phi}
micro_step_tokens = 400
[scoring]
concurrent = 4
[schedule]
policy = "{policy}"
training_cells = {training_cells}
"""


def write_experiment(folder: Path, policy: str, seed: int, servers: str) -> Config:
    task = folder / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n[agent]\ntimeout_sec = 900.0\n[verifier]\ntimeout_sec = 30.0\n')
    (task / "instruction.md").write_text("Make the tests pass.\n")
    (task / "tests" / "test.sh").write_text('#!/bin/sh\nexec cat "$1/reward.txt" > "$2"\n')
    (folder / "script.toml").write_text(f'[[answer]]\ntext = "{ANSWER}"\npiece = {PIECE_IDS}\n')
    (folder / "table.json").write_text(json.dumps(turns(seed)))
    text = EXPERIMENT.format(
        policy=policy, seed=seed, steps=STEPS, model=MODEL, cells=CELLS, capacity=CAPACITY, servers=servers, python=sys.executable,
        agent=AGENT, folder=folder, groups=GROUPS, size=SIZE, mu=MU, phi=PHI, training_cells=TRAINING_CELLS,
    )  # fmt: skip
    (folder / "experiment.toml").write_text(text)
    return load_config(folder / "experiment.toml")


class Stand(stack.Session):
    """A run on a supervisor that other runs use before and after it: Megatron is imported once."""

    def begin(self, supervisor: Supervisor) -> None:
        """Bring everything up but the runner, and wait for it."""
        self.supervisor, self.began = supervisor, time.monotonic()
        check_before_start(self.config)
        kafka = self._kafka()
        partitions = ensure_topics(kafka, self.run)
        self.launch = self._launch(kafka)
        self.launch.save(self.folder)
        forget(self.folder.health)
        self.log = KafkaLog(kafka, self.run)
        start_run(self.log, self._run_started(partitions, kafka))
        supervisor.start(*(spec for spec in self.specs() if spec.name != "runner"))
        self.wait_until_up()

    def specs(self) -> list[ProcessSpec]:
        """The stack's processes, the cells' engines and trainers paced."""
        assert self.launch is not None
        return [_paced(spec) for spec in run_processes(self.launch, self.folder)]

    def start_runner(self) -> None:
        assert self.supervisor is not None
        self.supervisor.start(*(spec for spec in self.specs() if spec.name == "runner"))

    def wait_until_up(self) -> None:
        """All cells have started, all trainers have read the log, the core has published the initial weights."""
        assert self.log is not None
        follower = self.log.follow(("cells", "training"))
        started: set[str] = set()
        published, trainers = False, {f"cell-{i}-trainer" for i in range(CELLS)}
        limit = time.monotonic() + UP_LIMIT_S
        try:
            while len(started) < CELLS or not published or trainers - set(reported(self.folder.health)):
                if time.monotonic() > limit:
                    raise TimeoutError(f"the stack was not up after {UP_LIMIT_S:.0f} s; its logs are in {self.folder.logs}")
                for record in follower.poll(0.2):
                    started |= {record.event.cell} if isinstance(record.event, CellStarted) else set()
                    published |= isinstance(record.event, Published)
        finally:
            follower.close()

    def end(self) -> None:
        """End the run's processes, and nothing else."""
        assert self.supervisor is not None
        names = {status.name for status in self.supervisor.statuses()}
        for name in names:
            self.supervisor.end(name)
        while any(status.state in (State.RUNNING, State.WAITING) for status in self.supervisor.statuses()):
            time.sleep(0.05)
        if self.log is not None:
            self.log.close()


def _paced(spec: ProcessSpec) -> ProcessSpec:
    kind = spec.name.rpartition("-")[2]
    return dataclasses.replace(spec, target=f"tests.bench.policies_cells:{kind}") if kind in ("engine", "trainer") else spec


@dataclass(frozen=True, slots=True)
class Ran:
    """One run, measured."""

    seconds: float
    utilisation: float
    overlap: float
    sampled_s: float
    trained_s: float
    trained_tokens: int
    staleness_max: int
    staleness_mean: float
    switches: int
    up_s: float


def run(policy: str, seed: int, servers: str, supervisor: Supervisor) -> Ran:
    with tempfile.TemporaryDirectory(prefix="gyre-policies-") as name:
        stand = Stand(write_experiment(Path(name), policy, seed, servers), StackFolder(supervisor.folder))
        shutil.rmtree(stand.folder.root / "busy", ignore_errors=True)
        try:
            stand.begin(supervisor)
            up = time.monotonic() - stand.began
            stand.start_runner()
            stand.follow(lambda _: None)
            assert stand.log is not None
            events = [r for topic in ("executions", "training", "cells") for r in stand.log.read(topic)]
            return measure(events, notes(stand.folder.root), up)
        finally:
            stand.end()


def measure(events: Sequence[Recorded], busy: list[Busy], up: float) -> Ran:
    first = min(r.at for r in events if isinstance(r.event, Dispatched)) / 1e6
    last = max(r.at for r in events if isinstance(r.event, StepCommitted)) / 1e6
    ended = [r.event for r in events if isinstance(r.event, Finished)]
    expected = STEPS * GROUPS * SIZE
    if len(ended) != expected or any(e.ending != "completed" for e in ended):
        raise RuntimeError(f"{len(ended)} executions ended, {expected} should have: {[e for e in ended if e.exit_code][:1]}")
    opened = [r.event for r in events if isinstance(r.event, StepOpened)]
    sampling, training = ([b for b in busy if b.kind == kind] for kind in ("sampling", "training"))
    sampled, trained = (sum(b.ended - b.began for b in part) for part in (sampling, training))
    return Ran(
        seconds=last - first, utilisation=(sampled / CAPACITY + trained) / (CELLS * (last - first)), overlap=overlap(busy),
        sampled_s=sampled / CAPACITY, trained_s=trained, trained_tokens=sum(b.amount for b in training),
        staleness_max=max(o.staleness_max for o in opened), staleness_mean=statistics.mean(o.staleness_mean for o in opened),
        switches=sum(isinstance(r.event, RoleChanged) for r in events), up_s=up,
    )  # fmt: skip


def overlap(busy: list[Busy]) -> float:
    """Time in which a cell computes a micro-step while another's engine serves a request / time in which a cell computes one."""
    both = total = 0.0
    for seconds, active in stretches(busy):
        trains, samples = ({b.cell for b in active if b.kind == kind} for kind in ("training", "sampling"))
        total += seconds if trains else 0.0
        both += seconds if any(samples - {cell} for cell in trains) else 0.0
    return both / total


def stretches(busy: list[Busy]) -> Iterator[tuple[float, set[Busy]]]:
    """The time cut where anything begins or ends: how long, and what goes on meanwhile."""
    moments = sorted([(b.began, True, i) for i, b in enumerate(busy)] + [(b.ended, False, i) for i, b in enumerate(busy)])
    active: set[int] = set()
    for (at, begins, index), (until, _, _) in itertools.pairwise(moments):
        active = active | {index} if begins else active - {index}
        yield until - at, {busy[i] for i in active}


def main() -> None:
    logging.getLogger("infra.supervisor").setLevel(logging.ERROR)
    ids = len(Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(ANSWER).ids) + 1
    print(
        f"an answer has {ids} tokens and takes {math.ceil(ids / PIECE_IDS) * PIECE_S:.1f} s; a micro-step {TOKENS_PER_S:g} tokens/s"
    )
    found: dict[str, list[Ran]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory(prefix="gyre-bench-") as name, Broker(BrokerSettings(Path(name, "kafka"))) as broker:
        StackFolder(Path(name, ".gyre")).secret()
        supervisor = Supervisor(Path(name, ".gyre"), preload={TRAINERS: PRELOADERS[TRAINERS]})
        try:
            for seed, policy in itertools.product(SEEDS, NAMES):
                found[policy].append(ran := run(policy, seed, broker.bootstrap_servers, supervisor))
                facts = ", ".join(f"{key} {value:.4g}" for key, value in dataclasses.asdict(ran).items())
                print(f"seed {seed} {policy}: {facts}", flush=True)
        finally:
            supervisor.stop()
    print(json.dumps(summary(found)))


def summary(found: dict[str, list[Ran]]) -> dict[str, float]:
    out: dict[str, float] = {"staleness_max": max(r.staleness_max for runs in found.values() for r in runs)}
    for name, runs in found.items():
        out |= {
            f"{name}_seconds": statistics.mean(r.seconds for r in runs),
            f"{name}_utilisation": statistics.mean(r.utilisation for r in runs),
            f"staleness_mean_{name}": statistics.mean(r.staleness_mean for r in runs),
            f"switches_{name}": statistics.mean(r.switches for r in runs),
        }
    for name in found.keys() - {"paper"}:
        ratios = [other.seconds / paper.seconds for other, paper in zip(found[name], found.get("paper", []), strict=False)]
        out |= {f"paper_over_{name}": statistics.mean(ratios)} if ratios else {}
    if runs := found.get("paper", []):
        out |= {"overlap": statistics.mean(r.overlap for r in runs), "utilisation": statistics.mean(r.utilisation for r in runs)}
    return {key: round(value, 4) for key, value in out.items()}


if __name__ == "__main__":
    main()
