"""The same ledger gives the same bits: whoever follows it, in however many processes, whoever died while it was written.

Real members and cores with Megatron replicas train three steps on a log in memory; then the ledger is followed anew, the members'
work spread over one, two or three processes, and the weights' hashes are those that were committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from consumers.trainer import core as core_module
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching import ExecutionWork, PackedMicroStep, Segment, pack
from gyre_engine.batching.step_inputs import Packing, packed
from gyre_engine.events import Event
from gyre_engine.events.training import Claimed, MemberJoined, MemberReleased, MicroStep, Sealed, StepOpened
from gyre_engine.losses.config import LossConfig
from gyre_engine.sampling.native.fresh import write_fresh_model
from gyre_engine.sampling.native.shape import ModelShape as FreshShape
from gyre_engine.training.ledger.merge import accumulate, merge, update
from gyre_engine.training.optimizer.adamw import AdamW
from gyre_engine.training.replica import Hyper, ReplicaOptions
from tests.forks import FORKED
from tests.unit.training.cast import Cast, Clock, history_of
from tests.unit.training.test_faults_of_trainers import POINTS, die_at
from tests.works import first_leaves

megatron = pytest.importorskip("gyre_engine.training.model.megatron")

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

VOCAB, STEPS, EXECUTIONS = 62, 3, 8
LOSS, HYPER = LossConfig(), Hyper(lr=1e-2)
SHAPE = FreshShape(
    architecture="qwen3", vocab=VOCAB, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, norm_eps=1e-6, rope_theta=1e4,
    max_context=128, tied=True, qk_norm=True, qkv_bias=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fresh_model(tmp_path_factory.mktemp("bits") / "model", SHAPE, seed=5, spread=0.1)


def works(step: int) -> list[ExecutionWork]:
    """Eight executions, each of a prefix and two branches."""
    rng = np.random.default_rng([17, step])
    found = []
    for number in range(EXECUTIONS):
        sizes = [int(n) for n in rng.integers(6, 14, 3)]
        trained = np.arange(sizes[0], sum(sizes), dtype=np.int32)
        segments = tuple(
            Segment(rng.integers(0, VOCAB, size).astype(np.int32), parent) for size, parent in zip(sizes, (-1, 0, 0), strict=True)
        )
        found.append(
            ExecutionWork(
                execution=f"e{step}.{number}", segments=segments, sequences=first_leaves(segments, trained),
                trained=trained, logprobs=(-4 + 0.3 * rng.standard_normal(len(trained))).astype(np.float32),
                versions=np.zeros(len(trained), np.int32), advantage=float(rng.standard_normal()), trained_tokens=len(trained),
            )
        )  # fmt: skip
    return found


def micro_steps(step: int, max_tokens: int = 45) -> list[PackedMicroStep]:
    return pack(works(step), max_tokens)


def replica_of(model: Path, dtype: str = "float32") -> megatron.MegatronReplica:
    from gyre_engine.training.model.shape import ModelShape

    made = megatron.MegatronReplica(ModelShape.of_folder(model), ReplicaOptions(dtype=dtype))
    made.load(model, 0)
    return made


class Real(Cast):
    """The cast with real replicas and a real optimizer."""

    hyper, executions = HYPER, EXECUTIONS
    optimizer_of = staticmethod(lambda replica: AdamW(replica.parameters))

    def __init__(self, folder: Path, clock: Clock, model: Path) -> None:
        self.replica_of = lambda: replica_of(model)
        self._model = model
        super().__init__(folder, clock)

    def settings(self, cell: str) -> TrainerSettings:
        return replace(super().settings(cell), model_path=str(self._model), packing=Packing(128, 128))

    def work(self, step: int) -> list[MicroStep]:
        return [event_of(step, number, part) for number, part in enumerate(micro_steps(step))]


def event_of(step: int, number: int, p: PackedMicroStep) -> MicroStep:
    return MicroStep(
        micro_step=f"m{step}.{number}", step=step, index=number, groups=(f"g{step}",), ids=p.ids, position=p.position, end=p.end,
        src=p.src, dst=p.dst, logprobs=p.logprobs, versions=p.versions, weight=p.weight, sequence=p.sequence,
        executions=p.executions,
    )  # fmt: skip


def alone(cast: Real) -> None:
    for cell in ("c1", "c2"):
        cast.gone(cast.satellites.pop(cell).transfer)  # type: ignore[attr-defined]


def together(cast: Real) -> None:
    """Nobody dies."""


def dies(at: type, work: int = 0) -> Callable[[Real], None]:
    """c1 is killed in step 2 after it has said this, and then computed so many micro-steps."""

    def kill(cast: Real) -> None:
        cast.move("c1", until=at)
        for _ in range(work):
            cast.satellites["c1"]()
        cast.kill("c1")

    return kill


def dies_once_read(cast: Real) -> None:
    cast.move("c1", until=Sealed)
    cast.until(lambda: any(cell == "c1" for cell, _ in cast.core._merging.fetched), cast.move_core)
    cast.kill("c1")


def core_dies(point: str) -> Callable[[Real], None]:
    """The core's trainer is killed at this point of step 2; nothing was stored, so that its next life makes step 1 again."""

    def kill(cast: Real) -> None:
        die_at(cast, point)
        cast.next_core()

    return kill


HISTORIES: Mapping[str, Callable[[Real], None]] = {
    "alone": alone,
    "together": together,
    "killed-as-it-joins": dies(MemberJoined),
    "killed-as-it-claims": dies(Claimed),
    **{f"killed-after-{n}-micro-steps": dies(Claimed, 2 * n) for n in (1, 2, 3)},
    "killed-as-it-seals": dies(Sealed),
    "killed-once-read": dies_once_read,
    **{f"core-killed-when-{point}": core_dies(point) for point in POINTS if point != "checkpointed"},
}


@pytest.fixture(scope="module")
def ledgers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ledger]]:
    """The ledger of each history, by name."""
    found, clock = {}, Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "time", clock)
        for name, happens in HISTORIES.items():
            cast = Real(tmp_path_factory.mktemp(name), clock, model)
            try:
                for step in range(1, STEPS + 1):
                    cast.open_step()
                    if step == (1 if happens is alone else 2):
                        happens(cast)
                    cast.finish(step)
                said = [r.event for r in cast.log.read("training")]
                packs = {r.event.micro_step: packed(r.event) for r in cast.log.read("micro-steps")}  # type: ignore[attr-defined]
                found[name] = Ledger(said, packs, cast.optimizer._parameters.weights.numpy().copy())  # type: ignore[attr-defined]
            finally:
                cast.close()
    yield found


class Ledger:
    """What one history left behind."""

    def __init__(self, said: list[Event], packs: dict[str, PackedMicroStep], weights: np.ndarray) -> None:  # type: ignore[type-arg]
        self.said, self.history, self.packs, self.weights = said, history_of(said), packs, weights


def _compute(link: Connection, model: str) -> None:
    """A process that gives gradient buffers of micro-steps at the weights it is sent."""
    replica = replica_of(Path(model))
    while (order := link.recv()) is not None:
        image, version, packs = order
        replica.load(image, version)
        link.send([accumulate(replica, each, LOSS)[0] for each in packs])


@pytest.fixture(scope="module")
def processes(model: Path) -> Iterator[list[Connection]]:
    links, made = [], []
    for _ in range(3):
        link, theirs = FORKED.Pipe()
        made.append(FORKED.Process(target=_compute, args=(theirs, str(model)), daemon=True))
        made[-1].start()
        theirs.close()
        links.append(link)
    yield links
    for link, process in zip(links, made, strict=True):
        link.send(None)
        process.join(60)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", HISTORIES)
def test_the_same_ledger_gives_the_same_bits(
    ledgers: dict[str, Ledger], processes: list[Connection], model: Path, name: str, count: int
) -> None:
    ledger, replica = ledgers[name], replica_of(model)
    optimizer = AdamW(replica.parameters)
    assert [s.committed.step for s in ledger.history.steps] == list(range(1, STEPS + 1))
    for step in ledger.history.steps:
        works, image, version = step.works, replica.export(), step.committed.step - 1
        buffers: list[np.ndarray] = [np.empty(0)] * len(works)  # type: ignore[type-arg]
        for at, link in enumerate(processes[:count]):
            link.send((image, version, [[ledger.packs[m] for m in work.micro_steps] for work in works[at::count]]))
        for at, link in enumerate(processes[:count]):
            buffers[at::count] = link.recv()
        update(optimizer, merge(buffers), step.opened.divisor, HYPER)
        replica.version = step.committed.step
        assert replica.weights_hash() == step.committed.weights_hash


def test_the_histories_differ_in_who_trained_what(ledgers: dict[str, Ledger]) -> None:
    """Otherwise the test above says little."""
    members = {name: [len(s.works) for s in ledger.history.steps] for name, ledger in ledgers.items()}
    assert members["alone"] == [1, 1, 1]
    assert max(members["together"]) > 1
    orders = {tuple(w.micro_steps for s in ledger.history.steps for w in s.works) for ledger in ledgers.values()}
    assert len(orders) >= 3


@pytest.mark.parametrize("name", HISTORIES)
def test_each_history_is_what_it_is_called(ledgers: dict[str, Ledger], name: str) -> None:
    said = ledgers[name].said
    released = [e.cell for e in said if isinstance(e, MemberReleased)]
    assert released == (["c1"] if name == "killed-as-it-seals" else [])
    attempts = [e.attempt for e in said if isinstance(e, StepOpened) and e.step == 2]
    assert attempts == ([1, 2] if name in {f"core-killed-when-{p}" for p in ("opened", "sealed", "read", "updated")} else [1])
    lives = [e for e in said if isinstance(e, MemberJoined) and (e.cell, e.step, e.attempt) == ("c1", 2, 1)]
    assert (len(lives) == 2) == (name.startswith("killed") and name != "killed-once-read"), lives


def test_other_memberships_agree_to_rounding(ledgers: dict[str, Ledger], model: Path) -> None:
    """Weights after three steps; the bound is that of sums in another order in fp32."""
    one, moved = ledgers["alone"].weights, np.linalg.norm(ledgers["alone"].weights - flat(model))
    for ledger in ledgers.values():
        assert np.linalg.norm(ledger.weights - one) <= 5e-6 * np.linalg.norm(one)
        assert np.linalg.norm(ledger.weights - one) < moved / 100


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("float64", 1e-10)])
def test_memberships_and_packings_give_one_gradient(model: Path, dtype: str, bound: float) -> None:
    replica = replica_of(model, dtype)

    def gradient(parts: list[list[PackedMicroStep]]) -> np.ndarray:  # type: ignore[type-arg]
        """The sum of the members' buffers."""
        return np.sum([accumulate(replica, part, LOSS)[0].astype(np.float64) for part in parts if part], axis=0)  # type: ignore[no-any-return]

    steps = micro_steps(1)
    expected = gradient([steps])
    others = [gradient([steps[::2], steps[1::2]]), gradient([steps[i::3][::-1] for i in range(3)])]
    others += [gradient([micro_steps(1, tokens)]) for tokens in (30, 200, 10_000)]
    for found in others:
        assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)


def flat(model: Path) -> np.ndarray:  # type: ignore[type-arg]
    return replica_of(model).parameters.weights.numpy().copy()  # type: ignore[no-any-return]
