"""Transfer: one-sided reads of memory that another process has registered (RDMA semantics); numpy and stdlib only.

`port` holds the contract, `registry` who may read what, `kinds` which one a run uses: `tcp` reads over sockets.
"""

from gyre_engine.transfer.port import (
    BadDescriptor,
    Descriptor,
    IntegrityError,
    NotPossible,
    PeerLost,
    Progress,
    Region,
    Transfer,
    TransferError,
    WrongKey,
)

__all__ = [
    "BadDescriptor",
    "Descriptor",
    "IntegrityError",
    "NotPossible",
    "PeerLost",
    "Progress",
    "Region",
    "Transfer",
    "TransferError",
    "WrongKey",
]
