"""Executions from dispatch to admission: runner, sandboxes, `mini`, proxy, verifier and derivations are real; scripted is what the
model says. Skips where there is no sandbox."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from consumers.scoring.scoring import Scoring
from consumers.scoring.verifier import VerifierScorer, VerifierSettings
from gyre_engine.admission import AdmissionSettings
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, EvaluationFailed, Finished, Scored
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.port import EngineError, GenerateRequest
from gyre_engine.sampling.scripted import Script, ScriptedEngine
from gyre_engine.sandbox import sandbox_available
from gyre_engine.tasks import Source, load_catalog
from producers.runner.settings import RunnerSettings
from streams.admission import AdmissionStream
from streams.derivation import Derivation
from streams.trajectory_trees import TrajectoryTrees
from tests.integration.harness_bench import MODEL, Bench, tool_call
from tests.integration.runner_fakes import write_task
from tests.integration.runner_runs import events, publish, runner_on, settings_for

Said = str | EngineError
End = Ending | tuple[DiscardReason, bool]
"""A discard with whether it is final."""

GROUP = "g000000"
THIRD = f"{GROUP}.2"

VERIFIER = """#!/bin/sh
case "$(cat answer.txt)" in hang) sleep 60;; crash) kill -9 $$;; esac
cp answer.txt /logs/verifier/reward.txt
"""
"""The answer is the reward."""


DONE = "Done."


def answers(content: str) -> str:
    """The model writes its answer."""
    return tool_call("write", path="answer.txt", content=content)


def shell(command: str) -> str:
    """The model runs a command."""
    return tool_call("bash", command=command)


RIGHT, WRONG = (answers("1"), DONE), (answers("0"), DONE)


def heard_nothing(_: str) -> None:
    """Of a call that is asked."""


@dataclass
class Agents:
    """Agents that are told what to do: `told` gives what the model says in an execution, the last of it again and again."""

    folder: Path
    told: Callable[[str], Sequence[Said]]
    heard: Callable[[str], None] = heard_nothing
    turns: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def task(self, name: str, **files: str) -> Path:
        """A task whose answer is its reward."""
        toml = "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 1.0\n"
        return write_task(self.folder / "tasks" / name, test=VERIFIER, toml=toml, **files)

    def engine(self) -> ScriptedEngine:
        """Says what each execution is told to hear."""
        return ScriptedEngine(self._play, version="0")

    def _play(self, request: GenerateRequest) -> Script:
        execution = request.rid.partition("-")[0]
        told = self.told(execution)
        said = told[min(self.turns[execution], len(told) - 1)]
        self.turns[execution] += 1
        self.heard(execution)
        if isinstance(said, EngineError):
            return Script((), error=said)
        return Script.of_text(self._tokenizer, said, *request.params.stop_token_ids[:1])

    def settings(self, on: Bench, **runner: Any) -> RunnerSettings:
        """Of a runner for these tasks."""
        return settings_for(self.folder, on.url, **runner)

    async def run(self, on: Bench, enough: Callable[[MemoryLog], bool], **runner: Any) -> None:
        """Dispatched and run until there is `enough` on the log; then all steps are committed, and the runner ends by itself."""
        settings = self.settings(on, **runner)
        async with runner_on(on.log, settings, self.folder) as runs:
            running = asyncio.create_task(runs.run())
            waiting = asyncio.create_task(_until(lambda: enough(on.log)))
            try:
                await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    await running
                await waiting
            finally:
                waiting.cancel()
            publish(on.log, settings.plan.steps)
            await asyncio.wait_for(running, 20)

    async def judge(self, log: MemoryLog) -> None:
        """Scored and derived, as far as it was not before."""
        verifier = VerifierScorer(VerifierSettings(sandbox_available(), self.folder / "scratch"))
        await Scoring(log, verifier, load_catalog([Source("tasks", self.folder / "tasks")])).score(follow=False)
        derive(log)


def group_of_three(folder: Path, third: Sequence[Sequence[Said]], **given: Any) -> Agents:
    """Two executions complete with 1 and 0; of the third each attempt is told what stands in `third`."""

    def told(execution: str) -> Sequence[Said]:
        _, index, attempt = execution.rsplit(".", 2)
        return third[int(attempt)] if index == "2" else (RIGHT, WRONG)[int(index)]

    return Agents(folder, told, **given)


async def _until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


def ended(count: int) -> Callable[[MemoryLog], bool]:
    """That many attempts have their terminal event."""
    return lambda log: len(events(log, Finished)) + len(events(log, Discarded)) >= count


def derive(log: MemoryLog) -> None:
    """What the streams put on the log: trees, then decisions; what stands there already is not put there again."""
    derivations: tuple[Derivation, ...] = (TrajectoryTrees(), AdmissionStream(AdmissionSettings("verifier", "1")))
    for derivation in derivations:
        known = {record.id for topic in ("trees", "trajectories") for record in log.read(topic)}
        for group in events(log, GroupAdmitted):
            derivation.begin(group)
        found = [d for topic in derivation.sources for raw in log.read_raw(topic) for d in derivation.observe(raw)]
        for derived in found:
            if derived.id not in known:
                log.append(derived.event, cause=derived.cause, id=derived.id, at=derived.at).result()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the log says about the group."""

    log: MemoryLog

    @property
    def ends(self) -> list[End]:
        """Of each attempt at the third place."""
        found = [event for kind in (Finished, Discarded) for event in events(self.log, kind) if event.execution.startswith(THIRD)]
        in_order = sorted(found, key=lambda event: str(event.execution))
        return [event.ending if isinstance(event, Finished) else (event.reason, event.final) for event in in_order]

    @property
    def attempts(self) -> list[str]:
        """At the third place; the other places have one each."""
        found = sorted(event.execution for event in events(self.log, Dispatched))
        assert found[:2] == [f"{GROUP}.0.0", f"{GROUP}.1.0"]
        return found[2:]

    @property
    def score(self) -> tuple[float, bool] | None:
        """Reward of the third place and whether it is a placeholder; None: it has none."""
        found = [event for event in events(self.log, Scored) if event.execution.startswith(THIRD)]
        assert len(found) <= 1
        return (found[0].reward, found[0].placeholder) if found else None

    @property
    def failed(self) -> list[EvaluationFailed]:
        """Evaluations that broke."""
        return events(self.log, EvaluationFailed)

    @property
    def group(self) -> GroupAdmitted:
        """The one decision."""
        (found,) = events(self.log, GroupAdmitted)
        assert isinstance(found, GroupAdmitted)
        return found

    def sampled(self, execution: str) -> int:
        """Tokens that the policy sampled in an execution."""
        return sum(len(call.output_ids) for call in events(self.log, ModelCall) if call.execution == execution)
