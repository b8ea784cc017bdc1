"""The tiny models of the replica's contract."""

from tests.contract.conftest import folder

__all__ = ["folder"]
