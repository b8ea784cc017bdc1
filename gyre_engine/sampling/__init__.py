"""Sampling: the InferenceEngine port and what implements it.

`native` (torch on a CPU), `sglang` (a client of SGLang's own HTTP interface, which `producers.cells.engine_server` speaks too) and
`scripted` (plays given outputs) pass one contract test. Token ids go in and out; text, templates and protocols are the proxy's.
Importing this package never imports torch: only `native` does.
"""

from gyre_engine.sampling.port import (
    Chunk,
    Completion,
    ContextTooLong,
    EngineError,
    EngineFailed,
    EngineNotServing,
    EngineStats,
    FinishReason,
    GenerateRequest,
    InferenceEngine,
    MismatchedOutput,
    SamplingParams,
    UnknownModel,
    WeightsUnreadable,
    complete,
)

__all__ = [
    "Chunk",
    "Completion",
    "ContextTooLong",
    "EngineError",
    "EngineFailed",
    "EngineNotServing",
    "EngineStats",
    "FinishReason",
    "GenerateRequest",
    "InferenceEngine",
    "MismatchedOutput",
    "SamplingParams",
    "UnknownModel",
    "WeightsUnreadable",
    "complete",
]
