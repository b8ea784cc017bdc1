"""Dialects: the wire protocols of the model endpoint (`port`), one entry each in `registry`.

`chat` is a file; `messages` and `responses` are folders. `body` reads JSON for all of them, `openai` is what OpenAI's two share.
Each parses a body into `producers.proxy.exchange.Ask` and words answers, streams, errors and the list of models.
"""
