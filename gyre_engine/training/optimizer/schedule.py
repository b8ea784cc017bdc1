"""Learning rate and weight decay of each update: a pure function of its number, by Megatron's scheduler. Light until it is called."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gyre_engine.training.replica import Hyper

if TYPE_CHECKING:
    from gyre_engine.training.model.megatron_core import OptimizerParamScheduler

STYLES = {
    "constant": "constant", "linear": "linear", "cosine": "cosine", "wsd": "WSD", "inverse-square-root": "inverse-square-root",
}  # fmt: skip
"""`optimizer.schedule` -> Megatron's name."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one update applies."""

    lr: float
    weight_decay: float


def rates(hyper: Hyper, update: int) -> Rates:
    """Of update 1, 2, ...: the first of a warm-up has lr / warmup_steps, the one numbered decay_steps has min_lr."""
    scheduler = _scheduler(hyper)
    scheduler.num_steps = update
    return Rates(scheduler.get_lr({}), scheduler.get_wd())


class _NoGroups:
    """Megatron's scheduler writes to an optimizer's groups as it is made; here it is only asked."""

    param_groups: tuple[Any, ...] = ()


@lru_cache(maxsize=4)
def _scheduler(hyper: Hyper) -> OptimizerParamScheduler:
    from gyre_engine.training.model.megatron_core import OptimizerParamScheduler

    rises = hyper.weight_decay_schedule != "constant"
    return OptimizerParamScheduler(
        _NoGroups(), init_lr=0.0, max_lr=hyper.lr, min_lr=min(hyper.min_lr, hyper.lr), lr_warmup_steps=hyper.warmup_steps,
        lr_decay_steps=max(hyper.decay_steps, hyper.warmup_steps + 1), lr_decay_style=STYLES[hyper.schedule],
        start_wd=hyper.weight_decay, end_wd=hyper.weight_decay_end if rises else hyper.weight_decay,
        wd_incr_steps=max(hyper.decay_steps, 1), wd_incr_style=hyper.weight_decay_schedule, wsd_decay_steps=hyper.wsd_steps,
        lr_wsd_decay_style="linear",
    )  # fmt: skip
