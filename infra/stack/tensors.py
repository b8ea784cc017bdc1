"""Whether a model folder's safetensors files hold the tensors that its config.json asks for: by their headers, no tensor is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from gyre_engine.training.model.hf_shapes import hf_shapes
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import TrainingError

OUTPUT = "lm_head.weight"
"""A model whose words share the embedding may hold it all the same; it is not read."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as its file's header has it."""

    file: Path
    shape: tuple[int, ...]


def misfits(model: Path) -> Iterator[str]:
    """What is wrong, with file, tensor and remedy. A config.json that is no JSON is not this check's to tell."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        yield f"{model} holds no *.safetensors file: save the model with safetensors"
        return
    found: dict[str, Stored] = {}
    broken = False
    for file in files:
        try:
            found |= _headers(file)
        except (SafetensorError, OSError) as error:
            broken = True
            yield f"{file} is cut short or no safetensors file ({error}): copy or download it again"
    if not broken:
        yield from _unlike(found, model)


def _headers(file: Path) -> dict[str, Stored]:
    """The library also compares the file's size with what its header says."""
    with safe_open(file, framework="np") as opened:
        return {name: Stored(file, tuple(opened.get_slice(name).get_shape())) for name in opened.keys()}  # noqa: SIM118


def _unlike(found: Mapping[str, Stored], model: Path) -> Iterator[str]:
    try:
        wanted = hf_shapes(ModelShape.of_folder(model))
    except TrainingError as error:
        if (model / "config.json").is_file():
            yield f"{model / 'config.json'}: {error}"
        return
    except KeyError as error:
        yield f"{model / 'config.json'} has no {error.args[0]}: put the model's own config.json there"
        return
    except (OSError, ValueError):
        return
    yield from _missing(sorted(wanted.keys() - found.keys()), found, model)
    yield from _unexpected(sorted(found.keys() - wanted.keys() - {OUTPUT}), found)
    yield from _of_other_shapes(wanted, found)


def _missing(names: list[str], found: Mapping[str, Stored], model: Path) -> Iterator[str]:
    if names:
        files = {stored.file for stored in found.values()}
        where = next(iter(files)) if len(files) == 1 else model
        text = f"{where} lacks {names[0]}{_and_more(names)}, which its config.json asks for"
        yield f"{text}: is a file of it not there, or config.json another model's? copy the whole model again"


def _unexpected(names: list[str], found: Mapping[str, Stored]) -> Iterator[str]:
    if names:
        text = f"{found[names[0]].file} holds {names[0]}{_and_more(names)}, of which its config.json knows nothing"
        yield f"{text}: is that another model's? put the model's own config.json there"


def _of_other_shapes(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Stored]) -> Iterator[str]:
    names = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name].shape)
    if names:
        stored = found[names[0]]
        text = f"{stored.file} holds {names[0]}{_and_more(names)} with shape {list(stored.shape)}"
        yield f"{text}, its config.json says {list(wanted[names[0]])}: put the model's own config.json there"


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
