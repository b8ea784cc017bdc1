"""The proxy: the model endpoint that agents call, token-in token-out, and the only writer of model-calls.

A request is parsed by its dialect (`dialects/`) into messages, matched against what its execution has said before
(`execution`, gyre_engine.trees), rendered to token ids (`rendering`), sampled on a cell (`router`, `generation`),
recorded (`recorder`), and only then answered. `app` is the web application, `process` the operating-system process,
`restore` what a restart reads back.
"""
