"""A place in an environment of Harbor's: one trial, held before its agent begins, and read when the agent has ended.

The trial runs as a task of its own. Its hook before the agent takes the hash of the untouched work and waits for `start`. Its hook
after the agent stops the clock, ends what the agent has left running, and fetches the work while the environment still stands. Then
Harbor stops it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from dataclasses import replace
from typing import Any

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.harbor import fetch, note, overlay, trial_environment, work_folders
from gyre_engine.keys import mint
from gyre_engine.sandbox import Exit
from gyre_engine.tasks import Task
from gyre_engine.work_product import WorkProduct, pack, remove_tree
from producers.runner.harbor.agent import MARK, HarborAgent
from producers.runner.harbor.endings import ending_of
from producers.runner.harnesses import Trouble
from producers.runner.place import CalledOff, PlaceError
from producers.runner.settings import RunnerSettings

logger = logging.getLogger("gyre.runner")

_FETCH_S = 600.0
"""How long bringing the work to the host may take."""
_TEARDOWN_S = 300.0
_SAID = 300
_END = "for p in /proc/[0-9]*; do grep -qzx {mark} $p/environ 2>/dev/null && kill -9 ${{p#/proc/}}; done; true"
_REWARDS = "ls -d /logs/verifier/reward.* 2>/dev/null; true"


class HarborPlace:
    """The Place of one execution, and its Process."""

    def __init__(self, name: str, task: Task, agent: HarborAgent, settings: RunnerSettings, cancelled: asyncio.Event) -> None:
        self._name, self._task, self._agent, self._settings, self._cancelled = name, task, agent, settings, cancelled
        self._folder = settings.workspaces / name
        self._trial_name = f"{settings.workspaces.name}-{name}"
        self._ready, self._go, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._trial: Any = None
        self._running: asyncio.Task[Any] | None = None
        self._paths: tuple[str, ...] = ()
        self._before, self._left = "", WorkProduct(b"")
        self._called, self._trouble = False, ""
        self._raised: BaseException | None = None
        self._began = self._wall_s = 0.0

    # Place

    async def prepare(self) -> str:
        remove_tree(self._folder)
        self._folder.mkdir(parents=True)
        self._trial = await self._made()
        self._running = asyncio.create_task(self._trial.run())
        await self._first(self._ready.wait(), self._cancelled.wait())
        if self._ready.is_set():
            return self._before
        if self._cancelled.is_set():
            raise CalledOff("cancelled while its environment was being made")
        raise PlaceError(self._trouble or f"the environment did not come up: {self._said()}")

    async def _first(self, *events: Any) -> None:
        """Until one of them, or the trial's end."""
        waits = [asyncio.ensure_future(event) for event in events]
        try:
            await asyncio.wait([*waits, self._task_of_trial], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @property
    def _task_of_trial(self) -> asyncio.Task[Any]:
        if self._running is None:
            raise RuntimeError("a trial is prepared first")
        return self._running

    def start(self) -> HarborPlace:
        self._began = time.monotonic()
        self._go.set()
        return self

    async def work(self) -> WorkProduct:
        if self._trouble or not self._paths:
            raise PlaceError(self._trouble or "the environment was gone before its work was fetched")
        return self._left

    def outcome(self, exit: Exit) -> Ending | Trouble:
        return ending_of(self._raised)

    def tool_results(self, exit: Exit) -> list[ToolReturned]:
        return []

    async def remove(self) -> None:
        """Harbor stops the environment as the trial ends."""
        if self._running is not None:
            if not self._ended.is_set():
                self._running.cancel()
            await self._over()
        await asyncio.to_thread(remove_tree, self._folder)

    async def _over(self) -> None:
        """The trial's end, which Harbor may be long about; it is cancelled then, and what it left is the next runner's to stop."""
        task = self._task_of_trial
        done, _ = await asyncio.wait({task}, timeout=_TEARDOWN_S)
        if not done:
            logger.warning("the environment of %s did not stop within %g s", self._name, _TEARDOWN_S)
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the trial of %s broke: %s", self._name, error)

    # Process

    @property
    def elapsed_s(self) -> float:
        return self._wall_s if self._ended.is_set() else time.monotonic() - self._began

    async def wait(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._first(self._ended.wait()), max(timeout, 0.0))
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        if not self._ended.is_set():
            self._task_of_trial.cancel()

    async def exit(self) -> Exit:
        await self._over()
        if not self._ended.is_set():
            self._stop_clock()
        ended_by_us = self._raised is None or isinstance(self._raised, asyncio.CancelledError)
        said = "" if ended_by_us else f"{type(self._raised).__name__}: {self._raised}"
        return Exit(int(self._raised is not None), said.encode(), False, self._called, self._wall_s)

    def _stop_clock(self) -> None:
        self._wall_s = time.monotonic() - self._began
        self._ended.set()

    # The trial

    async def _made(self) -> Any:
        """Raises PlaceError: the task, or what it asks of the environment, is not Harbor's or not this environment's."""
        try:
            trial = await importlib.import_module("harbor.trial.trial").Trial.create(self._config())
        except Exception as error:  # Harbor's models, environments and agents: whatever they refuse is told
            raise PlaceError(f"{self._task.folder}: Harbor refuses it: {error}") from error
        event = importlib.import_module("harbor.trial.hooks").TrialEvent
        trial.add_hook(event.AGENT_START, self._before_agent)
        trial.add_hook(event.AGENT_END, self._after_agent)
        self._watch_run(trial.agent)
        note(self._folder, f"{self._trial_name}__env", self._task.folder, self._agent.environment)
        return trial

    def _watch_run(self, agent: Any) -> None:
        """What the agent's own run raises, apart from what Harbor meets before and after it. `load` is a run with a history."""

        def watched(run: Any) -> Any:
            async def watching(*given: Any, **named: Any) -> None:
                self._called = True
                try:
                    await run(*given, **named)
                except BaseException as error:
                    self._raised = error
                    raise

            return watching

        agent.run, agent.load = watched(agent.run), watched(agent.load)

    def _config(self) -> Any:
        from harbor.models.trial.config import TaskConfig, TrialConfig, VerifierConfig

        settings, where = self._settings, self._agent.environment
        base = settings.public_url if self._agent.inside else settings.proxy_url
        agent = self._agent.config(
            base_url=f"{base.rstrip('/')}/v1", key=mint(settings.secret, self._name), model=settings.model, trial=self._trial_name,
            limit_s=10 * settings.overall_timeout_s,
        )  # fmt: skip
        return TrialConfig(
            task=TaskConfig(path=self._task.folder.resolve()), trial_name=self._trial_name, trials_dir=self._folder / "trial",
            agent=agent, environment=trial_environment(where, overlay(where, self._folder, settings.public_url)),
            verifier=VerifierConfig(disable=True),
        )  # fmt: skip

    async def _before_agent(self, _event: Any) -> None:
        """The environment stands and the agent is installed. What fails here keeps the agent from starting."""
        try:
            environment = self._trial.agent_environment
            artifacts = self._trial.task.config.artifacts
            self._paths = await work_folders(environment, artifacts, self._agent.environment.keep)
            self._before = (await self._fetched("before")).sha256
        except Exception as error:  # an environment is anybody's code
            self._trouble = f"the environment does not keep its work: {error}"
            raise
        self._ready.set()
        await self._go.wait()
        self._began = time.monotonic()

    async def _after_agent(self, _event: Any) -> None:
        self._stop_clock()
        try:
            environment = self._trial.agent_environment
            await environment.exec(_END.format(mark=f"{MARK}={self._trial_name}"), user="root", timeout_sec=60)
            written = (await environment.exec(_REWARDS, user="root", timeout_sec=60)).stdout or ""
            left = await self._fetched("after")
            rewards = tuple(f"{name.lstrip('/')}: written by the agent" for name in written.split())
            self._left = replace(left, dropped=(*rewards, *left.dropped))
        except Exception as error:  # the environment may be gone: then the execution is lost, and told so
            self._trouble = f"the environment was lost with the agent's work: {type(error).__name__}: {error}"

    async def _fetched(self, name: str) -> WorkProduct:
        root = self._folder / name
        root.mkdir()
        async with asyncio.timeout(_FETCH_S):
            links = await fetch(self._trial.agent_environment, self._paths, root)
        work = await asyncio.to_thread(pack, root, limit_bytes=self._settings.work_limit_bytes)
        await asyncio.to_thread(remove_tree, root)
        return replace(work, dropped=(*links, *work.dropped))

    def _said(self) -> str:
        """Why the trial ended by itself before the agent began."""
        task = self._task_of_trial
        if not task.cancelled() and task.exception() is not None:
            return str(task.exception())
        info = self._trial.result.exception_info
        return _middle_out(f"{info.exception_type}: {info.exception_message}") if info is not None else "Harbor did not say why"


def _middle_out(text: str) -> str:
    """A command line of docker's is long, and what went wrong stands at the end."""
    text = " ".join(text.split())
    return text if len(text) <= _SAID else f"{text[: _SAID // 3]} ... {text[-2 * _SAID // 3 :]}"
