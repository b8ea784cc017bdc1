"""A trainer process that is told to stop between its last commit and the checkpoint, on a log in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consumers.trainer.process import Trainer
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import PROBE_LENGTH, Packing, fixed_probe
from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged, SchedulerElected
from gyre_engine.events.training import Checkpointed, CoreElected, Published, StepCommitted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.training import checkpoint
from tests.unit.training.test_same_bits import WavyReplica
from tests.unit.training.test_trainers_protocol import admitted, begin

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
    "vocab_size": 50, "max_position_embeddings": 200, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip


class Closing(WavyReplica):
    def shards(self) -> None: ...

    def close(self) -> None: ...


class Stopping(MemoryLog):
    """Tells the trainer to stop once its commit is written."""

    trainer: Trainer

    def append_all(self, events: Sequence[Event], *given: Any, **more: Any) -> Any:
        found = super().append_all(events, *given, **more)
        if isinstance(events[-1], StepCommitted):
            self.trainer.stop()
        return found


def test_the_checkpoint_of_the_last_commit_is_stored_before_it_ends(tmp_path: Path) -> None:
    """The runner ends a run once its last step is committed. The one step is empty: its group does not train."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    log = Stopping(run="r")
    started = CellStarted(
        cell="c0", position=0, incarnation="i", engine="native", engine_url="", capacity=8, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip
    trains = RoleChanged(cell="c0", incarnation="i", role=CellRole.TRAINING, command_epoch=1, command_number=1)
    log.append_all([started, trains, admitted(0), SchedulerElected(epoch=1, holder="s"), begin(0, epoch=1)])
    settings = TrainerSettings(
        cell="c0", core=True, holder="h", model_path=str(tmp_path), plan=ClassPlan(1, 1, 0, 1), packing=Packing(100, 100),
        lease_s=5.0, checkpoint_url=f"file://{tmp_path}/stored", checkpoint_every=0,
    )  # fmt: skip
    log.trainer = Trainer(settings, log, Closing())  # type: ignore[arg-type]
    log.trainer.run()
    kinds = [type(r.event) for r in log.read("training") if not isinstance(r.event, CoreElected)]
    assert kinds[0] is Published and kinds[-2:] == [StepCommitted, Checkpointed]
    assert checkpoint.steps(settings.checkpoint_url) == [1]
    (first,) = [r.event for r in log.read("training") if isinstance(r.event, Published)]
    assert (first.version, first.probe_ids.tolist()) == (0, fixed_probe(50)) and len(first.probe_logprobs) == PROBE_LENGTH - 1
