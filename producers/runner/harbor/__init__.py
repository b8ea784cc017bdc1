"""Harbor's agents in Harbor's environments (docs/decisions/0009): `harness.name = "harbor:AGENT"`, `runner.environment = "docker"`.

A trial of Harbor's builds the environment, installs and runs the agent; we steer it by its hooks. Ours are the endpoint and the key,
the two clocks, the work product and the ending. Harbor's verifier is switched off: scoring runs it apart, on a fresh environment.
"""

from producers.runner.harbor.agent import PREFIX, HarborAgent, find_agent
from producers.runner.harbor.trial import HarborPlace

__all__ = ["PREFIX", "HarborAgent", "HarborPlace", "find_agent"]
