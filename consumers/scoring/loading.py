"""A scorer by its name MODULE:CLASS, with errors that say what is missing."""

from __future__ import annotations

import importlib
import inspect
import os
import sys

from consumers.scoring.port import Scorer


class ScorerError(ValueError):
    """A scorer that cannot be loaded; the text says why and the remedy."""


def load_scorer(spec: str) -> Scorer:
    """An instance of the class that `spec` names, found from the current folder or the environment. Raises ScorerError."""
    module_name, colon, class_name = spec.partition(":")
    if not colon or not module_name or not class_name:
        raise ScorerError(f"{spec!r} does not name a scorer: write MODULE:CLASS, e.g. my_scorer:MyScorer")
    module = _module(module_name)
    cls = getattr(module, class_name, None)
    if not inspect.isclass(cls):
        there = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name]
        raise ScorerError(f"module {module_name} has no class {class_name}; it has: {', '.join(sorted(there)) or 'none'}")
    return _instance(spec, cls)


def _module(name: str) -> object:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise ScorerError(f"no module {name!r} in {os.getcwd()} or in the environment") from error
        raise ScorerError(f"module {name} needs {error.name!r}, which is not installed") from error
    except Exception as error:  # the user's module: whatever it raises is theirs to see, in one line
        raise ScorerError(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _instance(spec: str, cls: type) -> Scorer:
    if not inspect.iscoroutinefunction(getattr(cls, "score", None)):
        raise ScorerError(f"{spec} is not a scorer: it needs `async def score(self, execution)`")
    try:
        scorer: Scorer = cls()
    except TypeError as error:
        raise ScorerError(f"{spec} cannot be made without arguments: {error}") from error
    for attribute in ("name", "version"):
        if not isinstance(getattr(scorer, attribute, None), str):
            raise ScorerError(f'{spec} needs a class attribute {attribute}, a text: e.g. {attribute} = "1"')
    return scorer
