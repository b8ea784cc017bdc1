"""The sections of the config that say what is trained on and how: batches, selection, roles, loss, optimizer, replica."""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.config.opt import opt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """How much work makes a step, and how far ahead it is dispatched."""

    groups: int = opt(16, "B: groups a step.")
    group_size: int = opt(8, "N: executions a group.")
    mu: int = opt(1, "Steps between two publications of weights to the samplers (a burst).")
    phi: int = opt(1, "Steps' worth of groups dispatched ahead. Staleness is at most phi + mu - 1.")
    micro_step_tokens: int = opt(4096, "Packed tokens of a micro-step.")
    trees: str = opt(
        "auto",
        "auto: a shared prefix is trained once, unless a layer of the model cannot be masked (linear attention). paths: every "
        "root-to-leaf path by itself, its prefix again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Groups and their baseline."""

    min: int = opt(2, "Executions that must count for a group to train.")
    deviation_floor: float = opt(0.01, "Floor of the group's deviation, in units of the reward range.")
    reward_range: float = opt(1.0, "Largest reward less the smallest.")
    scale: str = opt("deviation", "What a centred reward is divided by: deviation (of its group), or none.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """What of an execution's tree is trained on."""

    j_max: int = opt(5, "Trajectories trained per execution.")
    roles: tuple[str, ...] = opt(
        ("main", "main-summary", "sub-agent", "sub-agent-summary"), "Roles that are trained, in falling priority."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig:
    """A rule that says the role of a model call, where structure would say another; the first that holds counts."""

    role: str = opt("side", "main, main-summary, sub-agent, sub-agent-summary, side or abandoned.")
    system: str = opt("", "Regular expression, searched in the call's system text.")
    user: str = opt("", "Regular expression, searched in its last user message.")
    tools: str = opt("any", "Whether it offers tools: any, some or none.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The loss (docs/losses.md)."""

    name: str = opt(
        "ppo",
        "Policy loss: ppo, grpo, dr-grpo, dapo, gspo, cispo, decoupled-ppo, reinforce, or one that an installed package adds.",
    )
    aggregate: str = opt(
        "two-level",
        "How token losses become one: two-level (tokens, then executions), token, sequence (tokens of a trajectory, then "
        "trajectories), or constant.",
    )
    constant: int = opt(0, "For `constant`: the tokens that the sum of an execution is divided by.")
    clip_low: float = opt(0.2, "The ratio is clipped below at 1 less this; 1: never.")
    clip_high: float = opt(0.28, "And above at 1 and this (grpo and dr-grpo use clip_low on both sides).")
    importance_cap: float = opt(2.0, "Cap of the importance weight between engine and trainer (ppo, decoupled-ppo, reinforce).")
    kl: float = opt(0.0, "Coefficient of the divergence from the reference policy; 0: none is loaded.")
    kl_estimator: str = opt("k3", "How that is estimated from sampled tokens: k1, k2 or k3.")
    reference: str = opt("", "Folder of the reference policy, of the policy's shape; empty: its initial weights.")
    entropy: float = opt(0.0, "Coefficient of the entropy, which is made larger; 0: off.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, Megatron's; its state lies on the core alone, shared by the ranks of that cell (docs/parallel.md)."""

    lr: float = opt(2e-4, "Learning rate after warm-up.")
    beta1: float = opt(0.9, "AdamW beta 1.")
    beta2: float = opt(0.95, "AdamW beta 2.")
    eps: float = opt(1e-8, "AdamW epsilon.")
    weight_decay: float = opt(0.0, "Weight decay of matrices; norms and biases have none.")
    weight_decay_schedule: str = opt(
        "constant", "How it rises to `weight_decay_end` by `decay_steps`: constant (not), linear or cosine."
    )
    weight_decay_end: float = opt(0.0, "Its last value, where it rises.")
    clip_norm: float = opt(1.0, "The norm of the merged gradient is clipped to this; 0: never.")
    warmup_steps: int = opt(0, "Updates of linear warm-up.")
    schedule: str = opt(
        "constant",
        "Learning rate after warm-up: constant; linear, cosine or wsd (constant, then linear over the last `wsd_steps`), each down to "
        "`min_lr` at `decay_steps`; or inverse-square-root.",
    )
    decay_steps: int = opt(0, "The update at which the learning rate is down, warm-up included; 0: run.steps.")
    min_lr: float = opt(0.0, "The least learning rate after warm-up.")
    wsd_steps: int = opt(0, "For `wsd`: updates over which it comes down; 0: a tenth of `decay_steps`.")
    nonfinite: str = opt(
        "stop",
        "A gradient with NaN or infinity: stop (the run ends and says whose it was), or skip (the step is committed with unchanged "
        "weights, and says so). Weights keep their last good hash either way.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How replicas compute."""

    dtype: str = opt(
        "float32",
        "Of weights and computation: float32, or bfloat16 (half the memory of weights and of a publication; gradients, moments and "
        "the core's master weights stay float32; the gap between engine and trainer grows, docs/learning.md).",
    )
    device: str = opt(
        "cpu",
        "Where replicas compute: cpu, or cuda (a cell of one process; the bits are then those of that kind of GPU, and a replay on "
        "another machine is not comparable). Training on CUDA was not run yet.",
    )
    recompute: bool = opt(
        False, "Compute each layer's activations again in the backward pass: memory of one layer instead of all. The same bits."
    )
