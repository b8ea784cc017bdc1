"""Stands in for SGLang's compiled kernels, which exist for GPUs and for CPUs with AMX only.

On any other CPU, SGLang binds names of this package while it is imported and then computes with plain torch. So a name may be had
here, and calling it says which kernel a configuration asked for. Nor is there a driver that locks pages of memory, which SGLang asks
for where it is to record routed experts.
"""

import torch


class _Kernel:
    """A kernel by name: it can be passed around, not run."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *inputs, **options):
        raise RuntimeError(
            f"SGLang called its compiled kernel {self.__name__}: this path needs a GPU, or other flags (see launch.py)"
        )


class _NoDriver:
    """Memory of the host is reached as it is."""

    def cudaHostRegister(self, *place):
        return 0

    def cudaHostUnregister(self, *place):
        return 0


if not torch.cuda.is_available():
    torch.cuda.cudart = _NoDriver


def __getattr__(name):
    if name[:2] == "__":
        raise AttributeError(name)
    return _Kernel(name)
