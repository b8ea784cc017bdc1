"""A tree in one pass has the gradient of its root-to-leaf paths, each with its prefix again, as `batch.trees = "paths"` packs them."""

import numpy as np
import pytest

from gyre_engine.batching import pack
from tests.contract.replicas import VOCAB, forest, gradient, one_process, work

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")


def deep():
    """A trunk, forks within forks, a branch without trained tokens, leaves of one token: 12 leaves."""
    segments, leaves = [(-1, 40)], []
    for fork in range(4):
        segments.append((0, 5 + fork))
        for leaf in range(3):
            segments.append((1 + 4 * fork, 1 + 6 * leaf))
            leaves.append(len(segments) - 1)
    starts = np.cumsum([0, *[size for _, size in segments]])
    trained = [t for i in leaves if i != 7 for t in range(starts[i], starts[i + 1])]
    return work("deep", segments, [30, 31, *trained], 0.6)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-6), ("float64", 1e-10)])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_the_gradient_is_that_of_the_paths(folder, dtype, bound, recompute):
    replica = one_process(folder("qwen3"), dtype=dtype, recompute=recompute)
    works = [*forest(), deep()]
    trees, paths = pack(works, 4096), pack(works, 4096, trees=False)
    assert len(trees) == len(paths) == 1
    assert paths[0].tokens > 2 * trees[0].tokens
    assert paths[0].targets == trees[0].targets
    one, other = gradient(replica, trees), gradient(replica, paths)
    assert np.linalg.norm(one - other) / np.linalg.norm(other) <= bound


def test_paths_side_by_side_are_those_alone(folder):
    """No path sees another in its micro-step: the end of each is its own."""
    (step,) = pack([deep()], 4096, trees=False)
    starts = np.flatnonzero(step.position == 0)
    assert len(starts) == 11
    assert step.end[starts].tolist() == [*starts[1:].tolist(), step.tokens]
    assert set(np.unique(step.end)) == set(step.end[starts])
    assert step.ids.max() < VOCAB
