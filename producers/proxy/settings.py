"""The proxy's settings: plain values, given by whoever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gyre_engine.experts import Experts
from gyre_engine.sampling.port import SamplingParams
from producers.proxy.role_rules import RoleRule

POLICY: Final = "policy"


@dataclass(frozen=True, slots=True)
class Frozen:
    """An engine with the policy's tokenizer whose weights never change. url: where it speaks SGLang's interface."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """Somebody's OpenAI-compatible chat endpoint.

    url:     what stands before /chat/completions
    model:   the name to ask it for; empty: the name that the agent asks for
    key_env: the environment variable that holds its key; empty: it needs none
    """

    url: str
    model: str = ""
    key_env: str = ""


Model = Literal["policy"] | Frozen | Upstream
"""What a name stands for (learning.md, 12)."""


@dataclass(frozen=True, slots=True)
class RunSampling:
    """How the run samples; what a client asks does not count, but for max_tokens up to this one (learning.md, 2)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 4096

    def params(self, wanted: int, stop_ids: tuple[int, ...]) -> SamplingParams:
        """For a call that may sample `wanted` tokens."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=wanted,
            stop_token_ids=stop_ids,
        )


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """secret_file holds the stack's secret: it stands in no argument and no event.

    models:        name that a client asks for -> what it stands for; "*" is every other name
    context_limit: tokens of prompt and answer together
    wait_limit_s:  the longest wait for a cell, an engine or the log, until a retryable error
    quiet_s:       a stream is opened after this long without a token, and kept alive at this pace
    body_limit:    bytes of a request's body
    body_wait_s:   a body of which nothing more comes for this long is refused
    roles:         rules that say the role of a call, by its words
    retry:         whether a call that its engine did not finish begins anew; else it goes on elsewhere, from the very token
    experts:       the policy's, where its engines are asked which of them computed each token
    """

    model_folder: Path
    secret_file: Path
    host: str = "127.0.0.1"
    port: int = 0
    renderer: str = "qwen3"
    renderer_options: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=lambda: {"policy": POLICY})
    sampling: RunSampling = RunSampling()
    context_limit: int = 32_768
    wait_limit_s: float = 1800.0
    quiet_s: float = 10.0
    body_limit: int = 64 << 20
    body_wait_s: float = 60.0
    roles: tuple[RoleRule, ...] = ()
    retry: bool = False
    experts: Experts | None = None
    name: str = "proxy"

    def __post_init__(self) -> None:
        others = sorted(
            name for name, model in self.models.items() if not (model == POLICY or isinstance(model, Frozen | Upstream))
        )
        if others:
            raise ValueError(f"models {', '.join(others)}: a name can stand for {POLICY!r}, a Frozen or an Upstream only")
