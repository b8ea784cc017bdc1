"""Which policy loss, and its constants. Light: no torch."""

from __future__ import annotations

from dataclasses import dataclass

LOSS_NAMES = ("ppo", "grpo", "reinforce", "gspo")


@dataclass(frozen=True, slots=True)
class LossConfig:
    """`[loss]` of a run.

    name:       ppo | grpo | reinforce | gspo (see `losses.policy`)
    clip_low:   the ratio is clipped at 1 - clip_low
    clip_high:  and at 1 + clip_high (grpo uses clip_low on both sides)
    cap:        truncation of the importance weight (ppo, reinforce)
    entropy:    also measure the policy's entropy (costs a pass over the logits)
    """

    name: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    cap: float = 2.0
    entropy: bool = False

    def __post_init__(self) -> None:
        if self.name not in LOSS_NAMES:
            raise ValueError(f'loss.name has no "{self.name}"; choose one of {", ".join(LOSS_NAMES)}')
        if not 0 < self.clip_low < 1 or self.clip_high <= 0 or self.cap < 1:
            raise ValueError(
                f"loss: need 0 < clip_low < 1, clip_high > 0 and cap >= 1; got {self.clip_low}, {self.clip_high}, {self.cap}"
            )
