"""Which transfer a run uses: `tcp` anywhere, `verbs` where there are RDMA cards."""

from __future__ import annotations

from typing import Any

from gyre_engine.transfer.port import NotPossible, Transfer

KINDS = ("tcp", "verbs")


def open_transfer(kind: str, host: str = "127.0.0.1", *, secret: bytes | None = None, chunk: int | None = None) -> Transfer:
    """A transfer that peers reach at `host`. Raises NotPossible where this machine cannot have one of that kind."""
    options: dict[str, Any] = {"secret": secret} if chunk is None else {"secret": secret, "chunk": chunk}
    if kind == "tcp":
        from gyre_engine.transfer.tcp import TcpTransfer

        return TcpTransfer(host, **options)
    if kind == "verbs":
        from gyre_engine.transfer.verbs import VerbsTransfer

        return VerbsTransfer(host, **options)
    raise NotPossible(f"there is no transfer of kind {kind!r}; there are {', '.join(KINDS)}")


def why_not(kind: str) -> str:
    """Empty where this machine can have a transfer of that kind, else what is missing and the remedy."""
    if kind != "verbs":
        return "" if kind in KINDS else f"there is no transfer of kind {kind!r}; there are {', '.join(KINDS)}"
    from gyre_engine.transfer.cards import missing

    return missing()
