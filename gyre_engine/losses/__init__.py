"""Losses: advantages relative to the group, policy losses by name, what may be added to them, and how a target shares its
execution's weight.

`advantages`, `aggregates`, `config` and `names` are light; the others need torch and are imported by trainers only.
"""

from gyre_engine.losses.advantages import GroupAdvantages, group_advantages
from gyre_engine.losses.aggregates import AGGREGATES, divisor_share, target_shares, token_weights
from gyre_engine.losses.config import Entropy, LossConfig
from gyre_engine.losses.names import LossError

__all__ = [
    "AGGREGATES",
    "Entropy",
    "GroupAdvantages",
    "LossConfig",
    "LossError",
    "divisor_share",
    "group_advantages",
    "target_shares",
    "token_weights",
]
