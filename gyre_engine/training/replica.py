"""The ports of training: the replica, which every cell has, and the optimizer, which only the core has.

promises  the same calls in the same order give the same bytes, in any process on the same kind of machine
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.dead_end import DeadEnd
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.metrics import StepMetrics, UpdateMetrics


class TrainingError(RuntimeError):
    """A replica or an optimizer was given something it cannot train on; the message names it and the remedy."""


class Untrainable(TrainingError, DeadEnd):
    """What it was given stays as it is: whoever reads the log and the config again is given the same."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """temperature: the run's sampling temperature, by which logits are divided.
    dtype:       float32; bfloat16 (gradients are summed in float32 all the same); or float64 to check numbers.
    device:      cpu or cuda.
    recompute:   compute each layer's activations again in the backward pass: memory of one layer instead of all.
    """

    temperature: float = 1.0
    dtype: str = "float32"
    device: str = "cpu"
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise TrainingError(f"temperature is {self.temperature}; it must be above 0: greedy samples do not train")
        if self.dtype not in ("float32", "bfloat16", "float64"):
            raise TrainingError(f"training.dtype has no {self.dtype!r}; choose float32 or bfloat16 (or float64 to check numbers)")


def require_trainable(step: PackedMicroStep, version: int, vocabulary: int) -> None:
    """Raises TrainingError for a micro-step that a replica with weights of `version` cannot train on."""
    if version < 0:
        raise TrainingError("a micro-step came before any weights; call load first")
    newest = int(step.versions.max(initial=0))
    if newest > version:
        raise TrainingError(f"a target was sampled at version {newest}, the replica holds {version}; load it")
    if step.tokens and not 0 <= int(step.ids.min()) <= int(step.ids.max()) < vocabulary:
        raise Untrainable(f"a token id lies outside the vocabulary of {vocabulary}")


class TrainingReplica(Protocol):
    """A full copy of the policy that adds gradients (method.md, 3).

    version:  weight version held, -1 before any. `load` sets it; the core sets it after an update in place.
    """

    version: int

    def load(self, image: bytes | Path, version: int) -> None:
        """Take the weights of a Hugging Face safetensors image (bytes) or model folder, as weight version `version`."""

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        """Add the gradient of one micro-step's summed loss into the gradient buffer. Weights do not change."""

    def zero(self) -> None:
        """Clear the gradient buffer."""

    def gradient_buffer(self) -> NDArray[np.float32]:
        """The one flat buffer of gradient sums, same layout in every replica of a model; the live memory on a CPU."""

    def finite(self) -> bool:
        """Whether the gradient sum holds neither NaN nor infinity."""

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        """float32[n - 1]: log-probability of ids[1:], each given what stands before it, at `temperature` (None: the run's);
        no gradient. The gap probe asks for 1, as engines score prompts unscaled."""

    def target_logprobs(self, step: PackedMicroStep) -> NDArray[np.float32]:
        """float32[m]: log-probabilities of the micro-step's targets under the weights held, at the run's temperature; no gradient."""

    def export(self) -> bytes:
        """The weights as a Hugging Face safetensors image, fp32 or bf16, names sorted: equal weights give equal bytes."""

    def weights_hash(self) -> str:
        """SHA-256 of `export()`, hex."""

    def close(self) -> None:
        """End what the replica has started."""


@dataclass(frozen=True, slots=True)
class Hyper:
    """`[optimizer]` of a run. What of it changes from update to update is `gyre_engine.training.optimizer.schedule`'s to say.

    lr, min_lr:    learning rate after warm-up, and the least that `schedule` comes down to
    warmup_steps:  updates over which it rises linearly from lr / warmup_steps
    schedule:      constant, linear, cosine, wsd or inverse-square-root
    decay_steps:   the update that has min_lr, warm-up included; of wsd the last wsd_steps come down
    betas, eps, weight_decay: AdamW's; norms and biases do not decay
    weight_decay_schedule, weight_decay_end: how it rises over decay_steps, and to what
    clip:          largest gradient norm; 0 turns clipping off
    nonfinite:     a gradient with NaN or infinity: `stop` raises, `skip` leaves the weights as they are
    """

    lr: float = 1e-6
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    schedule: str = "constant"
    decay_steps: int = 0
    min_lr: float = 0.0
    wsd_steps: int = 1
    weight_decay_schedule: str = "constant"
    weight_decay_end: float = 0.0
    nonfinite: str = "stop"


class NonFiniteGradient(TrainingError):
    """The merged gradient holds NaN or infinity; weights and optimizer are as they were."""


class Optimizer(Protocol):
    """The only optimizer state of a run; changes the weights of the core's replica in place."""

    def apply(self, gradient_sum: NDArray[np.float32], divisor: int, hyper: Hyper) -> UpdateMetrics:
        """One update by gradient_sum / divisor. Raises NonFiniteGradient, unchanged, where the gradient is not finite."""

    def state_hash(self) -> str:
        """SHA-256 over the state's tensors, hex: equal states give equal hashes, however many ranks hold them."""

    def save(self, url: str) -> None:
        """Write the state into the folder at an fsspec URL."""

    def restore(self, url: str) -> None:
        """Take a state that `save` wrote, by whatever ranks; the replica holds the weights that belong to it. Raises TrainingError."""
