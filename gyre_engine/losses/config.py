"""Which policy loss, and its constants. Light: no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gyre_engine.losses.names import BUILT_IN, UnusableLoss, wrong_with

KL_ESTIMATORS = ("k1", "k2", "k3")


class Entropy(Enum):
    """What becomes of the policy's entropy: it costs a pass over the logits, and memory for their gradient where it is trained."""

    NONE = "none"
    MEASURED = "measured"
    TRAINED = "trained"


@dataclass(frozen=True, slots=True)
class LossConfig:
    """What trainers need of `[loss]`.

    name:             see `losses.surrogates`, or a plug-in's
    clip_low:         the ratio is clipped at 1 - clip_low; 1: never
    clip_high:        and at 1 + clip_high (grpo and dr-grpo use clip_low on both sides)
    cap:              truncation of the importance weight (ppo, decoupled-ppo, reinforce)
    kl:               coefficient of the KL divergence from the reference policy; 0: none is looked at
    kl_estimator:     k1 | k2 | k3 (see `losses.terms`)
    entropy:          coefficient of the entropy, which is made larger; 0: off
    measure_entropy:  measure the entropy also where it is not trained
    """

    name: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    cap: float = 2.0
    kl: float = 0.0
    kl_estimator: str = "k3"
    entropy: float = 0.0
    measure_entropy: bool = False

    def __post_init__(self) -> None:
        if self.name not in BUILT_IN and (wrong := wrong_with(self.name)):
            raise UnusableLoss(wrong)
        if not 0 < self.clip_low <= 1 or self.clip_high <= 0 or self.cap < 1:
            raise UnusableLoss(
                f"loss: need 0 < clip_low <= 1, clip_high > 0 and cap >= 1; got {self.clip_low}, {self.clip_high}, {self.cap}"
            )
        if self.kl < 0 or self.entropy < 0:
            raise UnusableLoss(f"loss.kl and loss.entropy must be at least 0, got {self.kl} and {self.entropy}")
        if self.kl_estimator not in KL_ESTIMATORS:
            raise UnusableLoss(f'loss.kl_estimator has no "{self.kl_estimator}"; choose one of {", ".join(KL_ESTIMATORS)}')

    @property
    def entropy_use(self) -> Entropy:
        """What the trainer computes of it."""
        if self.entropy:
            return Entropy.TRAINED
        return Entropy.MEASURED if self.measure_entropy else Entropy.NONE
