"""A replay compares where processor, builds, versions and arithmetic are the same; else it says what differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.replay.process import ReplaySettings, not_comparable
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events.log import RunStarted
from gyre_engine.training.fingerprint import fingerprint

HERE = {"gyre": "0.1.0", "tokenizers": "1.0"}
STARTED = RunStarted(
    run="r", config="{}", config_hash="h", versions=HERE, partitions={}, fingerprint=fingerprint(1), initial_weights="",
    initial_weights_hash="", topic_prefix="gyre.r",
)  # fmt: skip
SETTINGS = ReplaySettings(
    model_path="", temperature=1.0, packing=Packing(1, 1), threads=1, admission=AdmissionSettings("verifier", "1")
)


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


def test_what_stands_in_both_is_said_once() -> None:
    pinned = {"torch": "1.0"}
    started = replace(STARTED, versions=HERE | pinned, fingerprint=fingerprint(1) | pinned)
    here = fingerprint(1)["torch"]
    assert not_comparable(started, SETTINGS, HERE | {"torch": here}) == (f"torch was 1.0, here it is {here}",)
