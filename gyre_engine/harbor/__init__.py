"""Harbor, an optional package (Python >= 3.12, the extra of that name): its environments, as runner and scoring both use them.

Harbor builds, starts and stops an environment (docker, k8s, a cloud). Here stands how one is chosen and checked before a run, what in
it counts as an agent's work, and how that work comes out of it and into a fresh one. Nothing of Harbor is imported before it is used.
"""

from gyre_engine.harbor.environment import (
    HarborError,
    HarborSettings,
    check_environment,
    nearest,
    options,
    overlay,
    require,
    trial_environment,
)
from gyre_engine.harbor.leftovers import note, open_environment, stop_leftovers
from gyre_engine.harbor.work import fetch, put, work_folders

__all__ = [
    "HarborError",
    "HarborSettings",
    "check_environment",
    "fetch",
    "nearest",
    "note",
    "open_environment",
    "options",
    "overlay",
    "put",
    "require",
    "stop_leftovers",
    "trial_environment",
    "work_folders",
]
