"""What a verifier may write, as Harbor has it: reward.json before reward.txt, numbers only, within the range."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.scoring.port import EvaluationBroken
from consumers.scoring.reward import read_reward


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_json_counts_where_both_are_there(tmp_path: Path) -> None:
    score = read_reward(written(tmp_path, reward_txt="0", reward_json='{"reward": 1}'), {}, (0.0, 1.0))
    assert (score.reward, score.rewards) == (1.0, {"reward": 1.0})


def test_a_text_with_blanks_is_a_number(tmp_path: Path) -> None:
    assert read_reward(written(tmp_path, reward_txt=" 0.25\n"), {}, (0.0, 1.0)).reward == 0.25


def test_another_range_can_be_set(tmp_path: Path) -> None:
    assert read_reward(written(tmp_path, reward_txt="-3"), {}, (-5.0, 5.0)).reward == -3.0


@pytest.mark.parametrize("text", ['{"a": true}', '{"a": "1"}', '{"a": Infinity}', "{}", "null", "{", '{"a": 1, "b": 1}'])
def test_other_json_is_nonsense(tmp_path: Path, text: str) -> None:
    with pytest.raises(EvaluationBroken):
        read_reward(written(tmp_path, reward_json=text), {}, (0.0, 1.0))


def test_a_weight_without_its_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationBroken, match="lacks style"):
        read_reward(written(tmp_path, reward_json='{"tests": 1}'), {"tests": 0.5, "style": 0.5}, (0.0, 1.0))
