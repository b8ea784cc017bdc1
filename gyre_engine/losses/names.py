"""The names that `loss.name` may have: what is built in, and what installed packages add. Light: looks up names, loads nothing
before it is asked to.

A package adds a loss by an entry point of the group `gyre.losses`, NAME = "module:function" (docs/losses.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gyre_engine.dead_end import DeadEnd

BUILT_IN = ("ppo", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "decoupled-ppo", "reinforce")
GROUP = "gyre.losses"
SIGNATURE = "(current, targets, config)"


class LossError(ValueError):
    """A loss that cannot be used, or that was given what it cannot work on; the message names it and the remedy."""


class UnusableLoss(LossError, DeadEnd):
    """For what stands in the config, on the log or in what is installed. What a package raises may be another thing the next time."""


def plugins() -> dict[str, list[EntryPoint]]:
    """The losses of installed packages by name; an entry that a package declares twice, or that is found twice, counts once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: list(entries.values()) for name, entries in sorted(found.items())}


def choices() -> tuple[str, ...]:
    """All names, the built-in ones first."""
    return (*BUILT_IN, *(name for name in plugins() if name not in BUILT_IN))


def wrong_with(name: str) -> str:
    """Why the loss `name` cannot be taken, as far as names tell; empty where it can."""
    installed = plugins()
    if taken := [n for n in installed if n in BUILT_IN]:
        return (
            f'a package adds a loss "{taken[0]}" ({_origins(installed[taken[0]])}), which is the name of one that is built in: '
            "give it another name, or uninstall it"
        )
    if name in BUILT_IN or len(installed.get(name, [])) == 1:
        return ""
    if name in installed:
        return f'two packages add a loss "{name}" ({_origins(installed[name])}): uninstall one'
    own = ", ".join(installed) or f'none (entry points of the group "{GROUP}")'
    return f'loss.name has no "{name}"; choose one of {", ".join(BUILT_IN)}; of installed packages: {own}'


def load_plugin(name: str) -> Callable[..., Any]:
    """The function that an installed package gives for `name`. Raises LossError: it cannot be loaded, or takes other arguments."""
    if wrong := wrong_with(name):
        raise UnusableLoss(wrong)
    (entry,) = plugins()[name]
    try:
        function = entry.load()
    except Exception as error:  # code of others: whatever it raises keeps it from being used
        raise LossError(f'loss "{name}": {_origins([entry])} cannot be loaded: {error!r}') from error
    if not callable(function) or not _takes_three(function):
        raise UnusableLoss(f'loss "{name}": {_origins([entry])} must be a function {SIGNATURE}, as docs/losses.md shows')
    return function  # type: ignore[no-any-return]


def _takes_three(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def _origins(entries: list[EntryPoint]) -> str:
    return " and ".join(f"{e.value} of {e.dist.name}" if e.dist else e.value for e in entries)
