"""A script's answers follow from the prompt alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gyre_engine.sampling.port import GenerateRequest, SamplingParams
from gyre_engine.sampling.script_file import ScriptFile, ScriptUnreadable, read_script

TOKENIZER = Tokenizer.from_file(str(Path(__file__).parents[3] / "examples" / "quickstart" / "model" / "tokenizer.json"))
STOP = TOKENIZER.token_to_id("<|im_end|>")
FIRST = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
SECOND = FIRST + "one<|im_end|>\n<|im_start|>user\nanother<|im_end|>\n<|im_start|>assistant\n"


def script(folder: Path, text: str) -> ScriptFile:
    (folder / "script.toml").write_text(text)
    return read_script(folder / "script.toml", TOKENIZER)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def played(play: ScriptFile, prompt: Sequence[int]) -> list[int]:
    params = SamplingParams(max_tokens=64, stop_token_ids=(STOP,))
    return list(play(GenerateRequest("r", prompt, params)).output_ids)


TURNS = '[[answer]]\nturn = 0\ntext = "one"\n[[answer]]\nlast = "another"\ntext = "two"\n[[answer]]\ntext = "else"\n'


def test_the_first_answer_that_fits_is_played_with_the_stop_token(tmp_path: Path) -> None:
    play = script(tmp_path, TURNS)
    assert played(play, ids(FIRST)) == [*ids("one"), STOP]
    assert played(play, ids(SECOND)) == [*ids("two"), STOP]


def test_what_stands_before_the_latest_answer_is_not_the_last(tmp_path: Path) -> None:
    play = script(tmp_path, '[[answer]]\nlast = "hello"\ntext = "early"\n[[answer]]\ntext = "late"\n')
    assert (played(play, ids(FIRST)), played(play, ids(SECOND))) == ([*ids("early"), STOP], [*ids("late"), STOP])


def test_a_call_that_moved_goes_on_where_it_was(tmp_path: Path) -> None:
    play = script(tmp_path, '[[answer]]\ntext = "a longer answer"\n')
    whole = played(play, ids(FIRST))
    for cut in range(len(whole)):
        assert played(play, [*ids(FIRST), *whole[:cut]]) == whole[cut:]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the last .* must have no conditions"),
        ('[[answer]]\nturn = 1\ntext = "x"\n', "the last .* must have no conditions"),
        ("[[answer]]\nturn = 1\n", r"\[\[answer\]\] 1 has no text"),
        ('[[answer]]\ntext = "x"\nwhen = "y"\n', "has no key 'when'"),
        ('[[answer]]\ntext = "x"\nturn = -1\n', "turn must be a whole number"),
        ('[[answer]]\ntext = "x"\nlacks = 3\n', "lacks must be a text or a list"),
        ("answer", "Expected"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused_by_name(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ScriptUnreadable, match=f"script.toml.*{problem}"):
        script(tmp_path, text)
