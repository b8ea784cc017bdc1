"""The default scorer where executions run in environments of Harbor's: the task's tests, in a fresh one that the agent never saw.

Harbor itself mostly verifies in the agent's own environment: that one may be prepared by the agent, and it is gone when an evaluation
is to be tried again (docs/decisions/0009). The work is put into the fresh one first, then the tests. Reward files, and modules that
Python or pytest load unasked, are left out of the work and flagged, as in the sandbox.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consumers.scoring.copies import PLANTED, flags, is_planted, on_a_copy, own_planted
from consumers.scoring.port import EvaluationBroken, Score, ScoredExecution
from consumers.scoring.reward import read_reward
from gyre_engine.harbor import HarborSettings, check_environment, note, open_environment, put, trial_environment, work_folders
from gyre_engine.tasks import Task

logger = logging.getLogger("gyre.scoring")

_PUBLISHED = "logs/artifacts"
_UNREWARDED = frozenset({"RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"})
"""What Harbor says of the reward: it is read again by our own rules."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How Harbor would make the verifier's environment. `whole`: of the agent's kind, so that all of the work belongs into it."""

    task: Any
    environment: Any
    directory: Path
    bundled_tests: bool
    whole: bool
    network: Any


class HarborVerifier:
    """Scores by the task's tests. Work that was never begun scores 0 without a run (learning.md, 4)."""

    name = "verifier"
    version = "1"

    def __init__(
        self,
        settings: HarborSettings,
        scratch: Path,
        weights: Mapping[str, float] | None = None,
        bounds: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Raises HarborError where the environment cannot be used here."""
        check_environment(settings)
        self._settings, self._scratch, self._weights, self._bounds = settings, scratch, weights or {}, bounds
        scratch.mkdir(parents=True, exist_ok=True)

    async def score(self, execution: ScoredExecution) -> Score:
        return await on_a_copy(execution, self._scratch, self._verify)

    async def _verify(self, execution: ScoredExecution, task: Task, folder: Path) -> Score:
        root = folder / "root"
        root.mkdir()
        unpacked = await asyncio.to_thread(execution.unpack, root, _wanted)
        plan = await asyncio.to_thread(_planned, task.folder, self._settings)
        async with self._environment(plan, folder) as environment:
            artifacts = plan.task.config.artifacts
            folders = await work_folders(environment, artifacts, self._settings.keep, here=plan.whole)
            await put(environment, folders, root, PLANTED)
            await self._tests(plan, environment, folder)
        score = read_reward(folder / "trial" / "verifier", self._weights, self._bounds)
        return replace(score, flags=flags(unpacked, execution.finished.detail, own_planted(task)))

    @asynccontextmanager
    async def _environment(self, plan: _Plan, folder: Path) -> AsyncIterator[Any]:
        """Started, and stopped whatever happens. Raises EvaluationBroken where it does not come up."""
        session = f"{self._scratch.parent.name}-{folder.name}__verifier"
        note(folder, session, plan.task.task_dir, self._settings)
        given = {"environment_dir": plan.directory, "task_env_config": plan.environment}
        given |= {"network_policy": plan.network.verifier_env_baseline, "phase_network_policies": [plan.network.verifier_phase]}
        try:
            environment = open_environment(self._settings, plan.task.task_dir, session, folder / "trial", **given)
        except Exception as error:  # Harbor's environments are anybody's code
            raise EvaluationBroken(f"the verifier's environment was refused: {error}") from error
        try:
            await _started(environment, plan.environment.build_timeout_sec)
            yield environment
        finally:
            await _stopped(environment, session)

    async def _tests(self, plan: _Plan, environment: Any, folder: Path) -> None:
        """Harbor's own verifier: it empties the reward, brings the tests, runs them, and fetches what they wrote."""
        paths = environment.trial_paths
        verifier = importlib.import_module("harbor.verifier.verifier").Verifier(
            task=plan.task, trial_paths=paths, environment=environment, skip_tests_upload=plan.bundled_tests
        )
        config = plan.task.config.verifier
        if plan.network.verifier_phase != plan.network.verifier_env_baseline:
            await environment.set_network_policy(plan.network.verifier_phase)
        with environment.with_default_user(config.user):
            try:
                await asyncio.wait_for(verifier.verify(), config.timeout_sec)
            except TimeoutError:
                raise EvaluationBroken(f"the verifier did not end within {config.timeout_sec:g} s") from None
            except Exception as error:  # as above; what it says of the reward, read_reward says better
                if type(error).__name__ not in _UNREWARDED:
                    raise EvaluationBroken(f"the verifier broke: {type(error).__name__}: {error}") from error


async def _started(environment: Any, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await environment.start(force_build=False)
            await environment.run_healthcheck()
            await environment.empty_dirs(["/logs/verifier"], chmod=True)
    except Exception as error:  # as above
        raise EvaluationBroken(f"the verifier's environment did not come up: {type(error).__name__}: {error}") from error


async def _stopped(environment: Any, session: str) -> None:
    """One that does not stop costs no score."""
    try:
        await asyncio.shield(environment.stop(delete=True))
    except Exception as error:  # as above
        logger.warning("the verifier's environment %s could not be stopped: %s", session, error)


def _wanted(name: str) -> bool:
    """Of /logs only what the agent was to publish."""
    return not is_planted(name) and (
        name.split("/")[0] != "logs" or name in ("logs", _PUBLISHED) or name.startswith(f"{_PUBLISHED}/")
    )


def _planned(folder: Path, settings: HarborSettings) -> _Plan:
    """As Harbor resolves it; a task that would share the agent's environment gets a fresh one of the same kind."""
    from harbor.models.task.config import VerifierEnvironmentMode
    from harbor.models.task.task import Task as HarborTask
    from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
    from harbor.models.trial.config import AgentConfig, VerifierConfig
    from harbor.trial.network_policy import resolve_trial_network_plan

    task = HarborTask(folder)
    found = resolve_verifier_environment_definition(task.config, task.paths)
    config = found.config if found else task.config.environment.model_copy(deep=True)
    network = resolve_trial_network_plan(
        task.config, AgentConfig(), trial_environment(settings), VerifierConfig(), None,
        verifier_mode=VerifierEnvironmentMode.SEPARATE, env_config=config,
    )  # fmt: skip
    directory = found.directory if found else task.paths.environment_dir
    return _Plan(task, config, directory, bool(found and found.bundled_tests), found is None, network)
