"""Everything that would keep a run from starting is told before it starts, and at once."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from renderers.configs import config_from_name
from safetensors.numpy import save_file

from gyre_engine.config import ConfigError, load_config, read_source
from infra.stack import checks
from infra.stack.checks import TASKS_TOLD, check_before_start


def task(folder: Path, name: str) -> None:
    (folder / name / "tests").mkdir(parents=True)
    (folder / name / "task.toml").write_text('version = "1.0"\n')
    (folder / name / "instruction.md").write_text(f"Do {name}.\n")
    (folder / name / "tests" / "test.sh").write_text("exit 0\n")


SHAPE = {
    "model_type": "llama", "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 6,
    "vocab_size": 62, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


def llama(folder: Path, *, words: int = 5, rows: int = 62, **config: int) -> dict[str, NDArray[np.float16]]:
    """A model of SHAPE, changed by `config`: a tokenizer of `words` words, `rows` of embedding and output, all its tensors."""
    folder.mkdir(exist_ok=True)
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(words)}, "unk_token": "w0"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps({**SHAPE, **config}))
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, 8), "lm_head.weight": (rows, 8), "model.norm.weight": (8,)
    }  # fmt: skip
    for layer in ("model.layers.0", "model.layers.1"):
        sizes |= {f"{layer}.self_attn.{part}_proj.weight": (8, 8) for part in "qkvo"}
        sizes |= {f"{layer}.{part}_layernorm.weight": (8,) for part in ("input", "post_attention")}
        sizes |= {f"{layer}.mlp.{part}_proj.weight": (6, 8) for part in ("gate", "up")}
        sizes |= {f"{layer}.mlp.down_proj.weight": (8, 6)}
    tensors = {name: np.zeros(size, np.float16) for name, size in sizes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """One that can be run."""
    llama(tmp_path / "model")
    task(tmp_path / "tasks", "one")
    path = tmp_path / "exp.toml"
    path.write_text('[model]\npath = "model"\n[runner]\nsandbox = "none"\n[[data]]\npath = "tasks"\n')
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check_before_start(load_config(path))
    return str(error.value.found_in(read_source(path))).splitlines()


def test_what_is_whole_passes(experiment: Path) -> None:
    check_before_start(load_config(experiment))


def test_missing_folders_splits_and_scorers_are_told_together_each_with_its_line(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(
        '[model]\npath = "nowhere"\n[runner]\nsandbox = "none"\n[scoring]\nscorer = "none"\n[eval]\nafter = "test"\n'
        '[[data]]\npath = "tasks"\n[[data]]\npath = "gone"\nname = "b"\n'
    )
    assert problems(experiment) == [
        f"config error in {experiment}, line 2: model.path: {tmp_path}/nowhere is no folder "
        "(relative paths are taken from the config's folder)",
        f'config error in {experiment}, line 8: eval.after is "test", but no [[data]] source has split = "test": add one',
        f"config error in {experiment}, line 12: data.path: {tmp_path}/gone is no folder "
        "(relative paths are taken from the config's folder)",
        f"config error in {experiment}, line 6: scoring.scorer: 'none' does not name a scorer: write MODULE:CLASS, "
        "e.g. my_scorer:MyScorer",
    ]


def test_every_file_that_a_model_lacks_is_named(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "config.json").write_text("{")
    said = problems(experiment)
    assert len(said) == 3
    assert all(line.startswith(f"config error in {experiment}, line 2: model.path: ") for line in said)
    assert [word for word in ("tokenizer.json", "*.safetensors", "config.json") if any(word in line for line in said)] == [
        "tokenizer.json", "*.safetensors", "config.json"
    ]  # fmt: skip


def test_a_vocabulary_that_differs_from_the_engines_is_told(experiment: Path, tmp_path: Path) -> None:
    """An embedding may have more rows than there are words (padding); not fewer, and not others than config.json says."""
    llama(tmp_path / "model", words=5, vocab_size=8, rows=8)
    check_before_start(load_config(experiment))
    llama(tmp_path / "model", words=9, vocab_size=8, rows=6)
    said = problems(experiment)
    assert len(said) == 2
    assert "holds lm_head.weight and 1 more with shape [6, 8], its config.json says [8, 8]" in said[0]
    assert "tokenizer.json has words up to 8, config.json has vocab_size 8" in said[1]


@pytest.fixture(params=["model", "reference"])
def broken(request: pytest.FixtureRequest, experiment: Path, tmp_path: Path) -> tuple[Path, str]:
    """A whole model's folder that a test breaks, and how an error of it begins."""
    for name in ("model", "reference"):
        llama(tmp_path / name)
    experiment.write_text(experiment.read_text() + '[loss]\nkl = 0.1\nreference = "reference"\n')
    check_before_start(load_config(experiment))
    line = "line 2: model.path" if request.param == "model" else "line 9: loss.reference"
    return tmp_path / request.param, f"config error in {experiment}, {line}: {tmp_path / request.param}"


@pytest.mark.parametrize("kept", [0, 20, -1])
def test_weights_that_are_cut_short_are_told(experiment: Path, broken: tuple[Path, str], kept: int) -> None:
    folder, begin = broken
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    [line] = problems(experiment)
    assert line.startswith(f"{begin}/model.safetensors is cut short or no safetensors file (")
    assert line.endswith("): copy or download it again")


def test_tensors_that_are_not_there_are_told(experiment: Path, broken: tuple[Path, str]) -> None:
    """In one file, and in one of two."""
    folder, begin = broken
    whole = llama(folder)
    first = {name: tensor for name, tensor in whole.items() if "layers.1" not in name}
    save_file(first, folder / "model.safetensors")
    [line] = problems(experiment)
    assert line == (
        f"{begin}/model.safetensors lacks model.layers.1.input_layernorm.weight and 8 more, which its config.json asks for: "
        "is a file of it not there, or config.json another model's? copy the whole model again"
    )
    second = {name: whole[name] for name in whole.keys() - first.keys()}
    save_file(second, folder / "second.safetensors")
    check_before_start(load_config(experiment))
    del second["model.layers.1.mlp.up_proj.weight"]
    save_file(second, folder / "second.safetensors")
    [line] = problems(experiment)
    assert line.startswith(f"{begin} lacks model.layers.1.mlp.up_proj.weight, which its config.json asks for: ")


def test_tensors_that_nobody_asked_for_and_of_other_shapes_are_told(experiment: Path, broken: tuple[Path, str]) -> None:
    folder, begin = broken
    state = llama(folder)
    state["model.layers.2.mlp.up_proj.weight"] = state["model.layers.1.mlp.up_proj.weight"]
    state["model.layers.0.mlp.down_proj.weight"] = np.zeros((8, 5), np.float16)
    save_file(state, folder / "model.safetensors")
    unexpected, other = problems(experiment)
    assert unexpected == (
        f"{begin}/model.safetensors holds model.layers.2.mlp.up_proj.weight, of which its config.json knows nothing: "
        "is that another model's? put the model's own config.json there"
    )
    assert other == (
        f"{begin}/model.safetensors holds model.layers.0.mlp.down_proj.weight with shape [8, 5], its config.json says [8, 6]: "
        "put the model's own config.json there"
    )


def test_a_folder_without_weights_is_told(experiment: Path, broken: tuple[Path, str]) -> None:
    folder, begin = broken
    (folder / "model.safetensors").unlink()
    assert problems(experiment) == [f"{begin} holds no *.safetensors file: save the model with safetensors"]


def test_a_model_that_cannot_be_trained_is_told(experiment: Path, tmp_path: Path) -> None:
    for key, value, said in (
        ("model_type", "gpt2", "config.json: model_type 'gpt2' cannot be trained; supported: "),
        ("hidden_act", "gelu", "config.json: hidden_act 'gelu' cannot be trained; supported: silu"),
        ("rms_norm_eps", None, "config.json has no rms_norm_eps: put the model's own config.json there"),
    ):
        changed = {name: given for name, given in {**SHAPE, key: value}.items() if given is not None}
        (tmp_path / "model" / "config.json").write_text(json.dumps(changed))
        [line] = problems(experiment)
        assert line.startswith(f"config error in {experiment}, line 2: model.path: {tmp_path}/model/{said}")


def test_an_output_of_its_own_is_passed_over_where_the_embedding_is_shared(experiment: Path, tmp_path: Path) -> None:
    llama(tmp_path / "model", tie_word_embeddings=True)
    check_before_start(load_config(experiment))


@pytest.mark.parametrize(("wrong", "near"), [("qwen33", "qwen3"), ("glm5", "glm-5"), ("kimi_k2", "kimi-k2")])
def test_a_renderer_that_is_not_there_is_told_with_the_nearest(experiment: Path, wrong: str, near: str) -> None:
    experiment.write_text(experiment.read_text().replace('path = "model"', f'path = "model"\nrenderer = "{wrong}"', 1))
    [line] = problems(experiment)
    assert line.startswith(f"config error in {experiment}, line 3: model.renderer must be auto, MODULE:CLASS or one of")
    assert line.endswith(f"got '{wrong}'. Did you mean \"{near}\"?")


@pytest.mark.parametrize("name", ["qwen3", "default", "llama-3"])
def test_a_renderer_that_the_proxy_can_make_passes(experiment: Path, name: str) -> None:
    config_from_name(name)  # as the proxy does it
    check_before_start(load_config(experiment, [f"model.renderer={name}"]))


def test_what_is_code_of_ones_own_is_no_renderer_by_its_name(experiment: Path) -> None:
    with pytest.raises(ValueError, match="custom"):
        config_from_name("custom")
    with pytest.raises(ConfigError, match="got 'custom'"):
        check_before_start(load_config(experiment, ["model.renderer=custom"]))


def test_a_renderer_of_ones_own_is_named_by_its_class(experiment: Path) -> None:
    check_before_start(load_config(experiment, ["model.renderer=examples.smollm2.chat:ChatMl"]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such:Chat", "No module named 'no_such'"),
        ("json:Chat", "has no attribute 'Chat'"),
        ("json:JSONDecoder", "config_class"),
    ],
)
def test_what_is_wrong_with_a_renderer_of_ones_own_is_told(experiment: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"model.renderer: {name} is no renderer that can be used: .*{said}"):
        check_before_start(load_config(experiment, [f"model.renderer={name}"]))


def test_every_broken_task_is_told_up_to_a_number(experiment: Path, tmp_path: Path) -> None:
    for number in range(TASKS_TOLD + 2):
        task(tmp_path / "tasks", f"bad{number}")
        (tmp_path / "tasks" / f"bad{number}" / "task.toml").write_text("[[[")
    said = problems(experiment)
    assert len(said) == TASKS_TOLD + 1
    assert all(f"bad{number}" in said[number] for number in range(TASKS_TOLD))
    assert "2 more tasks" in said[-1]


def test_what_only_all_sources_together_show_is_told_too(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(experiment.read_text() + '[[data]]\npath = "tasks"\nsplit = "test"\n')
    [line] = problems(experiment)
    assert "is the same task as" in line


def test_a_config_without_model_and_data_says_both(tmp_path: Path) -> None:
    path = tmp_path / "exp.toml"
    path.write_text('[runner]\nsandbox = "none"\n')
    said = problems(path)
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == ["model.path is empty", "no [[data]] source"]


def test_tasks_are_read_once_where_nothing_is_wrong(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_again(_folder: Path) -> None:
        raise AssertionError("read a second time")

    monkeypatch.setattr(checks, "read_task", read_again)
    check_before_start(load_config(experiment))


def test_an_engine_that_is_not_installed_is_told(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SGLANG", tmp_path / "none")
    experiment.write_text(experiment.read_text() + '[cells]\nengine = "sglang"\n')
    [line] = problems(experiment)
    assert "line 8: cells.engine" in line
    assert "make install-sglang" in line


def test_kv_that_moves_through_hicache_is_refused_without_a_gpu(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is made to be missing, where it is not."""
    monkeypatch.setattr(checks, "no_gpu", lambda: "NVIDIA's driver is not on this machine")
    python = f'engine = "sglang"\nsglang_python = "{sys.executable}"\n'
    experiment.write_text(experiment.read_text() + f'[cells]\n{python}engine_kv = "hicache"\n')
    [line] = problems(experiment)
    assert "line 10: cells.engine_kv and cells.sglang_python: needs a GPU" in line
    assert "CUDA's runtime then, and NVIDIA's driver is not on this machine. On a CPU leave it out" in line


def test_hicache_needs_sglang_for_gpus(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "no_gpu", lambda: "")
    monkeypatch.setattr(checks, "SGLANG", Path(sys.executable))
    cells = '[cells]\nengine = "sglang"\nengine_kv = "hicache"\n'
    before = experiment.read_text()
    experiment.write_text(before + cells)
    [line] = problems(experiment)
    assert "line 9: cells.engine_kv" in line and "cells.sglang_python is empty" in line
    experiment.write_text(before + cells + f'sglang_python = "{tmp_path / "none"}"\n')
    [line] = problems(experiment)
    assert "line 10: cells.sglang_python" in line and "no program that can be run" in line
    experiment.write_text(before + cells + f'sglang_python = "{sys.executable}"\n')
    check_before_start(load_config(experiment))


def test_a_transfer_that_this_machine_cannot_have_is_told_with_what_it_lacks(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyverbs is made to be missing, where it is not."""
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    experiment.write_text(experiment.read_text() + '[transfer]\nkind = "verbs"\n')
    (told,) = problems(experiment)
    assert told.startswith(
        f'config error in {experiment}, line 8: transfer.kind is "verbs", which cannot work here: verbs needs pyverbs'
    )
    assert "python3-pyverbs" in told


def test_a_reference_of_another_vocabulary_is_told(experiment: Path, tmp_path: Path) -> None:
    llama(tmp_path / "model")
    llama(tmp_path / "other", vocab_size=64, rows=64)
    experiment.write_text(experiment.read_text() + '[loss]\nkl = 0.1\nreference = "other"\n')
    assert problems(experiment) == [
        f"config error in {experiment}, line 9: loss.reference: {tmp_path}/other has a vocabulary of 64 tokens, the policy one of 62: "
        "name a model of the same"
    ]


def test_a_reference_that_means_other_words_by_the_same_ids_is_told(experiment: Path, tmp_path: Path) -> None:
    """Of one size: two words of its tokenizer are exchanged. One more at its end, where the policy has none, is no other word."""
    for name, words in (("model", 5), ("other", 6)):
        llama(tmp_path / name, words=words)
    experiment.write_text(experiment.read_text() + '[loss]\nkl = 0.1\nreference = "other"\n')
    check_before_start(load_config(experiment))
    tokenizer = json.loads((tmp_path / "other" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"w2": 3, "w3": 2}
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert problems(experiment) == [
        f"config error in {experiment}, line 9: loss.reference: {tmp_path}/other/tokenizer.json has another word than the policy's "
        "at 2 ids (id 2 is 'w3', the policy's 'w2'): name a model with the policy's tokenizer"
    ]


def test_an_installed_loss_that_cannot_work_is_told(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "odd-1.0.dist-info").mkdir(parents=True)
    (site / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (site / "odd-1.0.dist-info" / "entry_points.txt").write_text("[gyre.losses]\nodd-loss = odd_losses:loss\n")
    (site / "odd_losses.py").write_text("def loss(current): ...\n")
    monkeypatch.syspath_prepend(str(site))
    experiment.write_text(experiment.read_text() + '[loss]\nname = "odd-loss"\n')
    assert problems(experiment) == [
        f'config error in {experiment}, line 8: loss.name: loss "odd-loss": odd_losses:loss of odd must be a function '
        "(current, targets, config), as docs/losses.md shows"
    ]


@pytest.mark.parametrize("said", ["null", '"wide"', "[8]"])
def test_a_config_json_whose_field_is_of_another_kind_is_told(experiment: Path, broken: tuple[Path, str], said: str) -> None:
    folder, begin = broken
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": json.loads(said)}))
    lines = problems(experiment)
    assert any(line.startswith(begin) and "config.json" in line for line in lines), lines
