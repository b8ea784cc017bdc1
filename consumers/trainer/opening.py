"""Opening a step: what it still waits for, what it trains on, and what the ledger is told. Looks at no clock.

reads     the board
promises  a step opens only with its whole batch, none of it older than phi and mu allow, and in a burst that the scheduler let begin
"""

from __future__ import annotations

from collections.abc import Callable

from consumers.trainer.board import Board
from consumers.trainer.refusal import require_not_refused
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import ReferenceScorer, StepInputs, missing_calls, step_inputs
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import StepOpened
from gyre_engine.scheduling.classes import missing_groups, next_groups
from gyre_engine.training.ledger.fold import Ledger
from gyre_engine.training.replica import Untrainable

_NAMED = 16
"""So many of a kind are named at most."""


def next_inputs(
    board: Board, settings: TrainerSettings, reference: ReferenceScorer | None, passed: Callable[[str], None]
) -> StepInputs | tuple[str, ...]:
    """What the next step trains on, or the names of what it waits for. Raises Untrainable where it may never open.

    passed: told of each wait that is over, every time: `data`, then `burst`
    """
    require_not_refused(board.refused)
    groups = next_groups(board.backlog.admitted, board.backlog.consumed, settings.plan)
    if groups is None:
        return _missing(board, settings)
    if unread := missing_calls(groups, board.backlog.calls):
        return tuple(f"model calls of {e}" for e in unread[:_NAMED])
    passed("data")
    if board.role is not CellRole.TRAINING:
        return (f"{settings.cell} to be given the role of training",)
    if board.bursts.begun < (start := settings.plan.burst_start(board.ledger.step)):
        # What is ready might be wanted less than this cell's engine.
        return (f"the scheduler to begin the burst behind step {start}",)
    passed("burst")
    return _fresh(board, settings, step_inputs(board.ledger.step + 1, groups, board.backlog.calls, settings.packing, reference))


def opened(ledger: Ledger, core_epoch: int, weights_hash: str, inputs: StepInputs) -> StepOpened:
    """The next attempt at the next step."""
    return StepOpened(
        core_epoch=core_epoch, step=ledger.step + 1, attempt=ledger.attempts + 1, weights_hash=weights_hash,
        groups=tuple(g.group for g in inputs.groups), scores=inputs.scores,
        micro_steps=tuple(m.micro_step for m in inputs.micro_steps), executions=inputs.executions, divisor=inputs.divisor,
        staleness_max=inputs.staleness_max, staleness_mean=inputs.staleness_mean,
    )  # fmt: skip


def _missing(board: Board, settings: TrainerSettings) -> tuple[str, ...]:
    backlog = board.backlog
    missing = missing_groups(backlog.numbers, len(backlog.consumed), settings.plan)
    return tuple(f"group {n}" for n in missing[:_NAMED])


def _fresh(board: Board, settings: TrainerSettings, inputs: StepInputs) -> StepInputs:
    plan = settings.plan
    if inputs.staleness_max > plan.phi + plan.mu - 1:
        raise Untrainable(
            f"step {board.ledger.step + 1} would train tokens that are {inputs.staleness_max} versions old; "
            f"phi {plan.phi} + mu {plan.mu} - 1 allows {plan.phi + plan.mu - 1}"
        )
    return inputs
