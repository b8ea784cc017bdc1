"""Losses: advantages relative to the group, policy losses by name, and how a target shares its execution's weight.

`advantages`, `aggregates` and `config` are light; `policy` needs torch and is imported by trainers only.
"""

from gyre_engine.losses.advantages import GroupAdvantages, group_advantages
from gyre_engine.losses.aggregates import AGGREGATES, divisor_share, token_weights
from gyre_engine.losses.config import LOSS_NAMES, LossConfig

__all__ = [
    "AGGREGATES",
    "LOSS_NAMES",
    "GroupAdvantages",
    "LossConfig",
    "divisor_share",
    "group_advantages",
    "token_weights",
]
