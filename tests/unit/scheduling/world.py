"""A small world for policies: executions of unit work, cells, steps of micro-steps; what happens next is drawn.

It knows nothing of the log and shares no code with the scheduler but the words of `cluster`. Of all that can happen one thing is
drawn; where nothing can and the run is not over, the policy is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cell, Cluster, Decision, Demand, Switch
from gyre_engine.scheduling.policies import POLICIES, PolicySettings

S, T, X = CellRole.SAMPLING, CellRole.TRAINING, CellRole.SWITCHING
EVALUATION = -1


class Dead(AssertionError):
    """Nothing can happen any more."""


@dataclass(slots=True)
class World:
    """batch groups of `size` executions a step; a step of `pieces` micro-steps; some executions need a second attempt."""

    policy: str
    random: Random
    cells: int = 3
    pool: int = 0
    capacity: int = 2
    batch: int = 1
    size: int = 2
    mu: int = 1
    phi: int = 1
    steps: int = 4
    pieces: int = 3
    retries: int = 0
    evaluates: bool = False
    settings: PolicySettings = field(default_factory=PolicySettings)

    roles: dict[int, CellRole] = field(default_factory=dict)
    going: dict[int, CellRole] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    out: list[int] = field(default_factory=list)
    """The group of each execution that is out, oldest first."""
    again: list[int] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    groups: int = 0
    step: int = 0
    published: int = 0
    begun: int = -1
    free: int | None = None
    """Micro-steps that nobody took; None: no step is open."""
    evaluated: int = -1
    """Version whose evaluation was dispatched last."""
    log: list[tuple[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roles = dict.fromkeys((*range(self.cells), *range(-1, -1 - self.pool, -1)), S)

    @property
    def over(self) -> bool:
        return self.step == self.steps

    @property
    def start(self) -> int:
        return self.step // self.mu * self.mu

    def cluster(self) -> Cluster:
        cells = (Cell(str(p), p, X if p in self.going else r, p in self.held) for p, r in self.roles.items())
        return Cluster(tuple(cells), self.capacity)

    def demand(self) -> Demand:
        ready, left = self.ready(), min(self.start + self.mu, self.steps) - self.step
        return Demand(
            water_level=len(self.out), to_dispatch=(self.allowed() - self.groups) * self.size, batch_ready=ready > 0,
            burst_ready=not self.over and ready >= left, step_open=self.free is not None, free_micro_steps=self.free or 0,
            begun=self.begun >= self.start, blocked=self.published < self.step and EVALUATION in self.out, over=self.over,
        )  # fmt: skip

    def allowed(self) -> int:
        return min(self.phi + self.mu + self.start, self.steps) * self.batch

    def ready(self) -> int:
        """Steps in a row that have their batch: a class of (phi + mu) * B groups, then classes of mu * B."""
        complete = [self.done.get(g, 0) == self.size for g in range(self.groups)]
        steps = self.step
        while steps < self.steps:
            first = 0 if steps < self.phi + self.mu else steps - (steps - self.phi) % self.mu
            last = self.phi + self.mu if first == 0 else first + self.mu
            if sum(complete[first * self.batch : last * self.batch]) < (steps - first + 1) * self.batch:
                break
            steps += 1
        return steps - self.step

    def decision(self) -> Decision | None:
        return POLICIES[self.policy](self.cluster(), self.demand(), self.settings)

    def can(self) -> list[tuple[str, Callable[[], None]]]:
        """All that can happen now."""
        served = self.capacity * sum(r is S for p, r in self.roles.items() if p not in self.going)
        core = self.roles[0] is T and 0 not in self.going
        open_ = core and self.free is None and self.begun >= self.start and self.published == self.step
        able = {
            "arrive": (bool(self.going), self.arrive),
            "dispatch": (self.groups < self.allowed(), self.dispatch),
            "again": (bool(self.again), self.retry),
            "evaluate": (self.evaluation_due(), self.evaluate),
            "end": (bool(self.out) and served > 0, lambda: self.end(served)),
            "open": (open_ and not self.over and self.ready() > 0, self.open),
            "train": (bool(self.free) and T in self.working(), self.train),
            "commit": (self.free == 0, self.commit),
            "publish": (self.published < self.step and not self.pinned(), self.publish),
            "decide": (self.decision() is not None, self.decide),
        }
        return [(name, act) for name, (possible, act) in able.items() if possible]

    def move(self) -> str:
        if not (possible := self.can()):
            raise Dead(f"{self.policy}: nothing can happen at step {self.step}: {self.cluster()} {self.demand()}")
        name, act = self.random.choice(possible)
        act()
        return name

    def working(self) -> list[CellRole]:
        return [r for p, r in self.roles.items() if p not in self.going]

    def pinned(self) -> bool:
        return self.step % self.mu == 0 and self.evaluates and (EVALUATION in self.out or self.evaluation_due())

    def evaluation_due(self) -> bool:
        """Of the version that the engines hold: every burst's is evaluated, and the next one waits for it."""
        return self.evaluates and self.evaluated < self.published // self.mu * self.mu

    def arrive(self) -> None:
        (position,) = self.going
        self.roles[position] = self.going.pop(position)

    def dispatch(self) -> None:
        self.out += [self.groups] * self.size
        self.groups += 1

    def retry(self) -> None:
        self.out.append(self.again.pop())

    def end(self, served: int) -> None:
        group = self.out.pop(self.random.randrange(min(served, len(self.out))))
        if group != EVALUATION and self.retries and self.random.random() < 0.3:
            self.retries -= 1
            self.again.append(group)
        elif group != EVALUATION:
            self.done[group] = self.done.get(group, 0) + 1

    def open(self) -> None:
        self.log.append(("open", dict(self.roles)))
        self.free = self.pieces

    def train(self) -> None:
        assert self.free
        self.free -= 1

    def commit(self) -> None:
        self.free, self.step = None, self.step + 1

    def publish(self) -> None:
        self.published = self.step

    def evaluate(self) -> None:
        self.evaluated = self.published
        self.out.append(EVALUATION)

    def decide(self) -> None:
        decision = self.decision()
        assert not self.going, "a decision while a cell is switching"
        self.log.append(("decide", (decision, self.demand(), self.cluster())))
        if isinstance(decision, Begin):
            assert self.begun < self.start, "a burst begins once"
            self.begun, self.held = self.start, {p for p, r in self.roles.items() if r is T}
        elif isinstance(decision, Switch):
            position = int(decision.cell)
            assert position >= 0, "the pool never trains"
            assert self.roles[position] is not decision.to, "a switch changes something"
            self.going[position] = decision.to
            self.held.discard(position)
