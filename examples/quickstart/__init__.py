"""The quickstart: a tiny Qwen3-shaped model learns to write small Python functions that are really executed.

`families` says what is asked, `tasks` writes it as Harbor task directories, `checker` runs what the model wrote,
`prompt` fixes the words around it, `tokenizer` and `warm_start` make the model folder that the run starts from.
"""
