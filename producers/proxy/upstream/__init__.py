"""Upstreams: models that somebody else serves, asked by name (learning.md, 12). What they say is context and never in the tree.

`wire` words a request of any dialect as a chat request and reads the answer; `client` asks; `refusals` says an upstream's errors in
the proxy's terms; `call` is one call with its event.
"""

from producers.proxy.upstream.call import UpstreamCall
from producers.proxy.upstream.client import KeyMissing, UpstreamClient

__all__ = ["KeyMissing", "UpstreamCall", "UpstreamClient"]
