"""Anthropic Messages: `dialect` reads bodies, `stream` words blocks, usage, errors and the events of a streamed answer."""

from producers.proxy.dialects.messages.dialect import Messages

__all__ = ["Messages"]
