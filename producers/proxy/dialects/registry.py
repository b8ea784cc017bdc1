"""The dialects that this proxy speaks; the first answers where a path is nobody's."""

from __future__ import annotations

from producers.proxy.dialects.chat import Chat
from producers.proxy.dialects.messages import Messages
from producers.proxy.dialects.port import Dialect
from producers.proxy.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Messages(), Responses())
