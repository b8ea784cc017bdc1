"""The losses once more, in numpy, from the formulae of their papers; nothing here comes from gyre_engine.

Each gives the sum over the targets. Parts without gradient are those of `still`: with `still = current` it is the loss, and its
differences by `current` alone are the gradient.
"""

import numpy as np

LOW, HIGH, CAP = 0.2, 0.28, 2.0


def pessimistic(ratio, weight, low, high):
    """min(r A, clip(r, 1 - low, 1 + high) A), PPO eq. 7."""
    return np.minimum(ratio * weight, np.clip(ratio, 1 - low, 1 + high) * weight)


def ppo(current, still, given):
    """PPO's term; where it leaves the ratio alone, that is truncated as an importance weight: r becomes r min(C, sg r) / sg r."""
    ratio, held = np.exp(current - given.behaviour), np.exp(still - given.behaviour)
    plain, term = ratio * given.weight, pessimistic(ratio, given.weight, LOW, HIGH)
    return -np.where(plain == term, term * np.minimum(CAP, held) / held, term).sum()


def grpo(current, still, given):
    return -pessimistic(np.exp(current - given.behaviour), given.weight, LOW, LOW).sum()


def dapo(current, still, given):
    return -pessimistic(np.exp(current - given.behaviour), given.weight, LOW, HIGH).sum()


def gspo(current, still, given):
    """Sequence by sequence: s = (pi(y) / pi_old(y))^(1 / |y|)."""
    total = 0.0
    for number in np.unique(given.sequence):
        of = given.sequence == number
        s = (np.exp(current[of].sum()) / np.exp(given.behaviour[of].sum())) ** (1 / of.sum())
        total -= sum(pessimistic(s, weight, LOW, HIGH) for weight in given.weight[of])
    return total


def cispo(current, still, given):
    held = np.clip(np.exp(still - given.behaviour), 1 - LOW, 1 + HIGH)
    return -(held * given.weight * current).sum()


def decoupled(current, still, given):
    """pi_prox / pi_behave min(u A, clip(u) A), u = pi / pi_prox; pi_prox by AReaL's alpha, from the versions themselves."""
    now, total = 9, 0.0
    for c, s, b, w, age in zip(current, still, given.behaviour, given.weight, given.staleness, strict=True):
        sampled, proximal_version = now - age, now - 1
        alpha = 0.0 if sampled == now else min(1.0, max(0.0, (proximal_version - sampled) / (now - sampled)))
        proximal = b + alpha * (s - b)
        total -= min(np.exp(proximal - b), CAP) * pessimistic(np.exp(c - proximal), w, LOW, HIGH)
    return total


def reinforce(current, still, given):
    return -(np.minimum(np.exp(still - given.behaviour), CAP) * given.weight * current).sum()


REFERENCES = {
    "ppo": ppo,
    "grpo": grpo,
    "dr-grpo": grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "decoupled-ppo": decoupled,
    "reinforce": reinforce,
}


def differences(function, current, step=1e-6):
    """d function / d current, by central differences."""
    found = np.empty_like(current)
    for index in range(len(current)):
        up, down = current.copy(), current.copy()
        up[index] += step
        down[index] -= step
        found[index] = (function(up) - function(down)) / (2 * step)
    return found
