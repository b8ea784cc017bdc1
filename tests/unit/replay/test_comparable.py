"""A replay compares where processor, builds, versions and arithmetic are the same; else it says what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.replay.process import ReplaySettings, not_comparable
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events.log import RunStarted
from gyre_engine.training.fingerprint import _gpu, fingerprint
from gyre_engine.training.replica import ReplicaOptions

HERE = {"gyre": "0.1.0", "tokenizers": "1.0"}
STARTED = RunStarted(
    run="r", config="{}", config_hash="h", versions=HERE, partitions={}, fingerprint=fingerprint(1), initial_weights="",
    initial_weights_hash="", topic_prefix="gyre.r",
)  # fmt: skip
SETTINGS = ReplaySettings(model_path="", packing=Packing(1, 1), threads=1, admission=AdmissionSettings("verifier", "1"))


def test_the_same_machine_and_versions_are_comparable() -> None:
    assert not_comparable(STARTED, SETTINGS, HERE) == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"versions": {**HERE, "tokenizers": "0.9"}}, "tokenizers was 0.9, here it is 1.0"),
        ({"versions": {}}, "gyre was not recorded, here it is 0.1.0"),
        ({"fingerprint": {**fingerprint(1), "numerics": "0"}}, "numerics was 0, here it is 1"),
        (
            {"fingerprint": {k: v for k, v in fingerprint(1).items() if k != "numerics"}},
            "numerics was not recorded, here it is 1",
        ),
        ({"fingerprint": {**fingerprint(1), "threads": "2"}}, "threads was 2, here it is 1"),
    ],
)
def test_what_differs_is_said(changed: dict[str, dict[str, str]], said: str) -> None:
    assert said in not_comparable(replace(STARTED, **changed), SETTINGS, HERE)  # type: ignore[arg-type]


def test_a_run_on_a_gpu_is_comparable_on_that_kind_of_gpu_alone() -> None:
    """This host has none, or another than the one that trained."""
    started = replace(STARTED, fingerprint=fingerprint(1, "cuda") | {"gpu": "NVIDIA X, driver 1"})
    on_a_gpu = replace(SETTINGS, options=ReplicaOptions(device="cuda"))
    (said,) = not_comparable(started, on_a_gpu, HERE)
    assert said.startswith("gpu was NVIDIA X, driver 1, here it is ")
    assert not_comparable(started, SETTINGS, HERE) == ("gpu was NVIDIA X, driver 1, here it is unknown",)


def test_a_gpu_is_told_by_kind_and_driver(tmp_path: Path) -> None:
    """As the driver's files say it; two cards of a kind are one."""
    for card in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / card).mkdir(parents=True)
        (tmp_path / "gpus" / card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   3\n")
    (tmp_path / "version").write_text("NVRM version: 570.1\nGCC version: 12\n")
    assert _gpu(tmp_path) == "NVIDIA H200, NVRM version: 570.1"
    assert _gpu(tmp_path / "none") == "none"


def test_what_stands_in_both_is_said_once() -> None:
    pinned = {"torch": "1.0"}
    started = replace(STARTED, versions=HERE | pinned, fingerprint=fingerprint(1) | pinned)
    here = fingerprint(1)["torch"]
    assert not_comparable(started, SETTINGS, HERE | {"torch": here}) == (f"torch was 1.0, here it is {here}",)
