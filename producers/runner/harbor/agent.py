"""One of Harbor's agents: found by name, checked before a run, and told where its model is.

An agent that is installed in its environment reaches the proxy under proxy.public_url; one that lives in the runner's process and only
sends commands there reaches it as the runner does. Key and address go by the variables that Harbor's agents read, per execution, never
through our own environment: executions share it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gyre_engine.harbor import HarborError, HarborSettings, check_environment, nearest, require
from producers.runner.harnesses import HarnessError, HarnessSettings

PREFIX = "harbor:"
MARK = "GYRE_TRIAL"
"""Stands in the environment of everything that an agent starts."""
_SPOKEN = frozenset({"openai_chat_completions", "openai_responses", "anthropic_messages"})
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LLM_API_KEY")
_URLS = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "LLM_BASE_URL")


@dataclass(frozen=True, slots=True)
class HarborAgent:
    """`inside`: it is installed in the environment; `keys`, `urls`: further variables that it reads."""

    name: str
    environment: HarborSettings
    inside: bool
    provider: str = "openai"
    keys: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, *, base_url: str = "", key: str = "", model: str = "policy", trial: str = "", limit_s: float = 0.0) -> Any:
        """Harbor's own config of it, for one execution. `limit_s`: Harbor's clock, which is never to be the first."""
        from harbor.models.trial.config import AgentConfig

        env = {**self._env(base_url, key), MARK: trial}
        named = {"import_path" if ":" in self.name else "name": self.name}
        return AgentConfig(
            **named,
            model_name=f"{self.provider}/{model}",
            env=env,
            kwargs=dict(self.options),
            override_timeout_sec=limit_s or None,
        )

    def _env(self, base_url: str, key: str) -> dict[str, str]:
        """`base_url` ends in /v1, which Anthropic's clients add themselves."""
        urls = {name: base_url.removesuffix("/v1") if "ANTHROPIC" in name else base_url for name in (*_URLS, *self.urls)}
        return {**urls, **dict.fromkeys((*_KEYS, *self.keys), key)}


def find_agent(harness: HarnessSettings, environment: HarborSettings, public_url: str) -> HarborAgent:
    """The agent that `harbor:NAME` names, in that environment. Raises HarnessError, whatever is wrong."""
    try:
        require()
        cls = _agent_class(harness.name.removeprefix(PREFIX))
        agent = _described(cls, harness, environment)
        check_environment(environment)
    except HarborError as error:
        raise HarnessError(str(error)) from error
    if agent.inside and not public_url:
        raise HarnessError(
            f"the agent {harness.name} runs inside {environment.environment!r}: set proxy.public_url to where the proxy is reached "
            'from there, e.g. "http://host.docker.internal:{port}", and proxy.host to an address that lets it in ("0.0.0.0")'
        )
    _check_options(agent)
    return agent


def _agent_class(name: str) -> Any:
    """Raises HarborError."""
    try:
        factory = importlib.import_module("harbor.agents.factory").AgentFactory
        config = importlib.import_module("harbor.models.trial.config").AgentConfig
        known = factory.registered_names()
        if ":" not in name and name not in known:
            raise HarborError(
                f"Harbor has no agent {name!r}{nearest(name, known)}: harness.name is harbor:MODULE:CLASS or harbor: and one of "
                f"{', '.join(known)}"
            )
        return factory.get_agent_class_from_config(config(**{"import_path" if ":" in name else "name": name}))
    except (ImportError, TypeError, ValueError) as error:
        raise error if isinstance(error, HarborError) else HarborError(f"harness.name harbor:{name}: {error}") from error


def _described(cls: Any, harness: HarnessSettings, environment: HarborSettings) -> HarborAgent:
    """Raises HarborError where it speaks none of the proxy's dialects."""
    name, spec = harness.name.removeprefix(PREFIX), getattr(cls, "MODEL_CONNECTION", None)
    spoken: Iterable[str] = [str(each) for each in spec.supported_api_formats] if spec else ()
    if spoken and _SPOKEN.isdisjoint(spoken):
        raise HarborError(f"Harbor's agent {name} speaks {', '.join(spoken)} only; the proxy speaks {', '.join(sorted(_SPOKEN))}")
    installed = importlib.import_module("harbor.agents.installed.base").BaseInstalledAgent
    access = spec.agent_provider_access if spec else None
    return HarborAgent(
        name, environment, inside=issubclass(cls, installed), provider=(spec.default_provider if spec else None) or "openai",
        keys=tuple(access.api_key_candidate_names) if access else (), urls=tuple(access.base_url_candidate_names) if access else (),
        options=harness.options,
    )  # fmt: skip


def _check_options(agent: HarborAgent) -> None:
    """Harbor's own checks of an agent's options. Raises HarnessError."""
    factory = importlib.import_module("harbor.agents.factory").AgentFactory
    try:
        factory.run_preflight(agent.config(base_url="http://127.0.0.1/v1", key="none"), skip_credential_checks=True)
    except (SystemExit, ImportError, OSError, TypeError, ValueError) as error:
        raise HarnessError(f"Harbor's agent {agent.name} cannot be used: {error}") from error
