"""One execution from workspace to work product: prepare, start the harness, watch the clocks, close at the proxy, keep the work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import fsspec

from gyre_engine.events import Event
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished, Started
from gyre_engine.sandbox import Exit, Isolation
from gyre_engine.tasks import Task, TaskError
from gyre_engine.work_product import WorkProduct
from producers.runner.clock import watch
from producers.runner.endings import Facts, Stopped, judge
from producers.runner.harbor import HarborAgent, HarborPlace
from producers.runner.harnesses import Harness
from producers.runner.place import CalledOff, Place, PlaceError, Process
from producers.runner.proxy_client import Closed, ProxyClient, ProxyUnavailable
from producers.runner.settings import RunnerSettings
from producers.runner.workspace import Workspace

_DETAIL = 400
_CANCELLED_PATIENCE_S = 2.0
_STORE_TRIES = 3
_GONE = {Stopped.CANCELLED: DiscardReason.CANCELLED, Stopped.OVERALL_TIME: DiscardReason.OVERALL_TIMEOUT}
"""Why an execution leaves whose work is gone with its place; otherwise it is lost."""

logger = logging.getLogger("gyre.runner")

Append = Callable[[Event], Awaitable[object]]
"""Puts an event on the log; done when it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What all executions share: where they run and whom they talk to."""

    settings: RunnerSettings
    isolation: Isolation
    harness: Harness | HarborAgent
    proxy: ProxyClient
    socket: str

    def place(self, name: str, task: Task, cancelled: asyncio.Event) -> Place:
        """Where an execution runs: Harbor's agents in Harbor's environments, all others in the sandbox."""
        if isinstance(self.harness, HarborAgent):
            return HarborPlace(name, task, self.harness, self.settings, cancelled)
        return Workspace(name, task, self.harness, self.settings, self.isolation, self.socket)


@dataclass(frozen=True, slots=True)
class Ended:
    """A harness that has ended. `work`: what it left; `before`: the hash of a workspace that nobody touched."""

    stopped: Stopped
    exit: Exit
    work: WorkProduct
    before: str
    closed: Closed

    @property
    def did_work(self) -> bool:
        return self.work.sha256 != self.before


class Execution:
    """Runs one attempt; `outcome` is its terminal event."""

    def __init__(self, name: str, task: Task, outside: Outside, append: Append, cancelled: asyncio.Event) -> None:
        self._name, self._task, self._outside = name, task, outside
        self._append, self._cancelled = append, cancelled
        self._place = outside.place(name, task, cancelled)
        self._began = time.monotonic()

    async def outcome(self) -> Finished | Discarded:
        """Run it to its end. `final` of a Discarded is left True: who keeps the budget decides. Leaves no workspace behind."""
        try:
            try:
                before = await self._place.prepare()
                await self._proxy_answers()
            except (TaskError, OSError, PlaceError) as error:
                return self._discarded(DiscardReason.ENVIRONMENT, str(error))
            except CalledOff as called_off:
                return self._discarded(DiscardReason.CANCELLED, str(called_off))
            await self._append(Started(execution=self._name))
            return await self._run(before)
        finally:
            await self._place.remove()

    async def _proxy_answers(self) -> None:
        """No agent starts before its endpoint is there: one that calls once and gives up would lose this attempt. Raises CalledOff."""
        reached = asyncio.ensure_future(self._outside.proxy.reached(self._name))
        called_off = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait((reached, called_off), return_when=asyncio.FIRST_COMPLETED)
            if not reached.done():
                raise CalledOff("cancelled while it waited for the proxy")
            reached.result()
        finally:
            reached.cancel()
            called_off.cancel()

    async def _run(self, before: str) -> Finished | Discarded:
        try:
            running = self._place.start()
        except OSError as error:
            return self._discarded(DiscardReason.ENVIRONMENT, f"the harness could not be started: {error}")
        try:
            stopped = await self._watch(running)
        finally:
            running.kill()
        exit = await running.exit()
        closed = await self._close(stopped)
        try:
            work = await self._place.work()
        except PlaceError as error:
            return self._discarded(_GONE.get(stopped, DiscardReason.LOST), str(error))
        await asyncio.gather(*map(self._append, self._place.tool_results(exit)))
        return await self._verdict(Ended(stopped, exit, work, before, closed))

    async def _close(self, stopped: Stopped) -> Closed:
        """A cancelled execution counts nowhere, and the proxy may be going down with us: it is not waited for long."""
        if stopped is not Stopped.CANCELLED:
            return await self._outside.proxy.close_execution(self._name)
        try:
            return await self._outside.proxy.close_execution(self._name, patience_s=_CANCELLED_PATIENCE_S)
        except ProxyUnavailable as error:
            logger.warning("%s", error)
            return Closed(0, 0)

    async def _watch(self, running: Process) -> Stopped:
        settings = self._outside.settings
        served_s = settings.harness_timeout_s or self._task.agent_timeout_s or settings.overall_timeout_s

        async def held() -> float | None:
            held_us = await self._outside.proxy.held_us(self._name)
            return None if held_us is None else held_us / 1e6

        return await watch(running, served_s=served_s, overall_s=settings.overall_timeout_s, held=held, cancelled=self._cancelled)

    async def _verdict(self, ended: Ended) -> Finished | Discarded:
        said = self._place.outcome(ended.exit)
        verdict = judge(Facts(ended.stopped, ended.exit.came_up, said, ended.did_work))
        detail = self._detail(ended)
        if isinstance(verdict, DiscardReason):
            return self._discarded(verdict, detail)
        url = await self._keep(ended.work)
        return self._finished(verdict, url, ended, detail)

    def _finished(self, ending: Ending, url: str, ended: Ended, detail: str) -> Finished:
        wall_us = int(ended.exit.wall_s * 1e6)
        return Finished(
            execution=self._name, ending=ending, work_url=url, work_hash=ended.work.sha256, did_work=ended.did_work,
            served_us=max(wall_us - ended.closed.held_us, 0), wall_us=wall_us, exit_code=ended.exit.code, detail=detail,
        )  # fmt: skip

    def _discarded(self, reason: DiscardReason, detail: str) -> Discarded:
        wall_us = int((time.monotonic() - self._began) * 1e6)
        return Discarded(execution=self._name, reason=reason, final=True, wall_us=wall_us, detail=detail[:_DETAIL])

    def _detail(self, ended: Ended) -> str:
        """What was left out of the work product, and the harness's last words where it failed."""
        parts = [f"left out {path}" for path in ended.work.dropped[:5]]
        if ended.exit.code != 0:
            parts.append(ended.exit.output[-_DETAIL:].decode(errors="replace").strip())
        return "; ".join(parts)[-_DETAIL:]

    async def _keep(self, work: WorkProduct) -> str:
        """The URL of the stored tar; a store that stumbles is tried again. Raises OSError."""
        url = f"{self._outside.settings.store.rstrip('/')}/work/{self._name}.tar"
        for _ in range(_STORE_TRIES - 1):
            try:
                await asyncio.to_thread(_write, url, work.data)
                return url
            except OSError as error:
                logger.warning("cannot write %s (%s): trying again", url, error)
                await asyncio.sleep(1.0)
        await asyncio.to_thread(_write, url, work.data)
        return url


def _write(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)
