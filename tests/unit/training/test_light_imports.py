"""Who only packs, reads memory or decides never pays for torch."""

import subprocess
import sys

LIGHT = (
    "gyre_engine.batching",
    "gyre_engine.losses",
    "gyre_engine.training",
    "gyre_engine.training.replica",
    "gyre_engine.training.core_replica",
    "gyre_engine.training.opening",
    "gyre_engine.training.reference",
    "gyre_engine.training.ranks.fit",
    "gyre_engine.training.model.shape",
    "gyre_engine.training.checkpoint",
    "gyre_engine.transfer",
    "gyre_engine.transfer.tcp",
    "gyre_engine.transfer.verbs",
)


def test_light_modules_do_not_import_torch_even_indirectly():
    code = f"import sys, {', '.join(LIGHT)}; print({{'torch', 'transformers', 'megatron'}} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "set()"
