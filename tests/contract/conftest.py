"""Replicas to test, on models made once. torch is imported when one is asked for: most contracts need none."""

import pytest

from gyre_engine.training.mesh import ONE, Mesh

MESHES = {"one": ONE, "tensor": Mesh(tensor=2), "pipeline": Mesh(pipeline=2), "data": Mesh(data=2)}
"""One process, and cells of two; those start processes in every test, and test_cell_replica has the short of it."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A family's tiny model in a folder."""
    from tests.contract.replicas import saved

    return lambda family: saved(family, tmp_path_factory.getbasetemp())


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name != "one" else ()) for name in MESHES])
def replica_of(request, folder):
    """(family, options) -> a loaded replica at version 3."""
    from tests.contract.leaders import Leader
    from tests.contract.replicas import one_process

    leaders = []

    def build(family="qwen3", **options):
        if family == "qwen3_moe" and max(MESHES[request.param].tensor, MESHES[request.param].pipeline) > 1:
            pytest.skip("experts are not divided among ranks: refused by name, see test_model_shape")
        if request.param == "one":
            return one_process(folder(family), **options)
        leaders.append(Leader(folder(family), MESHES[request.param], **options))
        return leaders[-1]

    yield build
    for leader in leaders:
        leader.end()
