"""The native engine: Qwen3, Qwen3-MoE, Qwen2 and Llama in fp32 with torch, in one thread of one process.

`shape` and `weights` read a Hugging Face folder, `model` is the forward pass, `slots` holds the KV of what runs, `prefix` the KV
that may be reused, `sampler` draws ids, `batcher` decides what is computed next, `engine` is the thread around it.
"""

from gyre_engine.sampling.native.engine import NativeEngine

__all__ = ["NativeEngine"]
