"""What a policy looks at, and what it may decide: cells and their roles, what is out there, what could be trained."""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.events.cells import CellRole


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as the scheduler sees it.

    position:  place in the fixed order, 0 is the core; below 0: of the standalone pool, which never trains
    held_over: it trains since before the present burst began
    """

    name: str
    position: int
    role: CellRole
    held_over: bool = False

    @property
    def standalone(self) -> bool:
        return self.position < 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """All cells, and C_e: executions that one cell serves."""

    cells: tuple[Cell, ...]
    capacity_per_cell: int

    @property
    def order(self) -> tuple[Cell, ...]:
        """The cells that change their roles, in their fixed order: the core, then the satellites."""
        return tuple(sorted((c for c in self.cells if not c.standalone), key=lambda c: c.position))

    @property
    def core(self) -> Cell | None:
        """None while it is lost: nothing is merged then."""
        return next((cell for cell in self.order if cell.position == 0), None)

    @property
    def switching(self) -> bool:
        """Whether a cell of the order is on its way. A standalone engine that is away holds nobody up: it only serves nobody."""
        return any(c.role is CellRole.SWITCHING for c in self.order)

    @property
    def training(self) -> tuple[Cell, ...]:
        return tuple(c for c in self.order if c.role is CellRole.TRAINING)

    @property
    def sampling_capacity(self) -> int:
        """C_R, the standalone pool in it."""
        return self.capacity_per_cell * sum(c.role is CellRole.SAMPLING for c in self.cells)

    @property
    def capacity_beside_the_core(self) -> int:
        """C_R once the core alone trains."""
        there = (c.position != 0 and c.role in (CellRole.SAMPLING, CellRole.TRAINING) for c in self.cells)
        return self.capacity_per_cell * sum(there)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is out there and what could be trained."""

    water_level: int = 0
    to_dispatch: int = 0
    """Executions that the boundaries passed so far allow and that nobody has dispatched yet."""
    batch_ready: bool = False
    """The next step has its B groups."""
    burst_ready: bool = False
    """Every step that the burst still needs has its B groups."""
    step_open: bool = False
    free_micro_steps: int = 0
    """Micro-steps of the open step that nobody has claimed."""
    begun: bool = False
    """The burst that the next step belongs to was let begin."""
    blocked: bool = False
    """What is committed waits for an evaluation before it can be published: only sampling helps."""
    over: bool = False
    """All steps of the run are committed."""

    @property
    def out_there(self) -> int:
        """w, and what is certain to be added to it at once."""
        return self.water_level + self.to_dispatch


@dataclass(frozen=True, slots=True)
class Switch:
    """A cell is to change its role."""

    cell: str
    to: CellRole
    reason: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The core, which is in training, may open the steps of the next burst."""

    reason: str


Decision = Switch | Begin
