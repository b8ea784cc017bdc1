"""The real SGLang on a CPU: an environment of its own, and how to start it."""
