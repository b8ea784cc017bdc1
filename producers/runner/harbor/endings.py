"""How one of Harbor's agents ended: the exception that its run raised, in the words of learning.md, 4."""

from __future__ import annotations

from collections.abc import Mapping

from gyre_engine.events.executions import Ending
from producers.runner.harnesses import Trouble

_OWN: Mapping[str, Ending] = {
    "AgentTimeoutError": Ending.HARNESS_TIMEOUT,
    "ContextWindowExceededError": Ending.CONTEXT_LIMIT,
    "ContextLengthExceededError": Ending.CONTEXT_LIMIT,
    "OutputTokenExceededError": Ending.TOKEN_BUDGET,
    "OutputLengthExceededError": Ending.TOKEN_BUDGET,
}
_AWAY = frozenset(
    {
        "ApiConnectionClosedError", "ApiConnectionError", "ApiInternalServerError", "ApiOverloadedError", "ApiRateLimitError",
        "ApiResponseStalledError", "NetworkConnectionError",
        # litellm's, of agents that live in our process
        "APIConnectionError", "InternalServerError", "RateLimitError", "ServiceUnavailableError", "Timeout",
    }
)  # fmt: skip


def ending_of(error: BaseException | None) -> Ending | Trouble:
    """By the names of the exception's class and those above it: Harbor's types need not be imported."""
    if error is None:
        return Ending.COMPLETED
    names = [cls.__name__ for cls in type(error).__mro__]
    if own := [_OWN[name] for name in names if name in _OWN]:
        return own[0]
    return Trouble.ENDPOINT_LOST if _AWAY.intersection(names) else Trouble.CRASHED
