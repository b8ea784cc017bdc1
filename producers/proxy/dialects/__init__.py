"""Dialects: one module a wire protocol. Each parses a body into `producers.proxy.exchange.Ask` and writes answers and errors back."""
