"""The only door to Megatron-core. It warns about every CUDA extension that is absent, which is the normal case here."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Without Megatron's warnings about itself, at import and while a model is built; nobody can act on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


with quiet():
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, Adam
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

# Raised inside its own forward pass; one rank has only the default group.
warnings.filterwarnings("ignore", message=".*tp_group is None", category=DeprecationWarning)
# Advice for CUDA's queues, raised by every tensor-parallel layer.
warnings.filterwarnings("ignore", message="When using async grad allreduce")

__all__ = [
    "USING_PYTORCH_OPTIMIZER",
    "Adam",
    "GPTModel",
    "MegatronModule",
    "OptimizerParamScheduler",
    "ProcessGroupCollection",
    "TopKRouter",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "get_gpt_layer_local_spec",
    "parallel_state",
    "quiet",
]
