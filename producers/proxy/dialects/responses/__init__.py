"""OpenAI Responses: `dialect` reads bodies, `input` their items, `tools` their tools; `output` words answers, `stream` events."""

from producers.proxy.dialects.responses.dialect import Responses

__all__ = ["Responses"]
