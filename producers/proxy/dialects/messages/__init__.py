"""Anthropic Messages: `dialect` reads bodies, `input` their items; `output` words answers and errors, `stream` events."""

from producers.proxy.dialects.messages.dialect import Messages

__all__ = ["Messages"]
