"""The policies that switch roles, each a pure function of what there is: the same one decides live and in a simulator.

`POLICIES` knows them by the name that `schedule.policy` takes. What they share: they decide one thing at a time, and nothing while a
cell is switching; a burst begins only when they say so; the standalone pool samples for ever.
"""

from gyre_engine.scheduling.policies.async_split import async_split
from gyre_engine.scheduling.policies.colocate import colocate
from gyre_engine.scheduling.policies.paper import paper
from gyre_engine.scheduling.policies.port import Policy, PolicySettings

POLICIES: dict[str, Policy] = {"paper": paper, "async": async_split, "colocate": colocate}

__all__ = ["POLICIES", "Policy", "PolicySettings"]
