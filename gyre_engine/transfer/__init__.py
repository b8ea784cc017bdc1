"""Transfer: one-sided reads of memory that another process has registered (RDMA semantics); numpy and stdlib only.

`port` holds the contract, `tcp` reads over sockets where there is no RDMA card.
"""

from gyre_engine.transfer.port import (
    Descriptor,
    IntegrityError,
    PeerLost,
    Region,
    Transfer,
    TransferError,
    WrongKey,
)

__all__ = ["Descriptor", "IntegrityError", "PeerLost", "Region", "Transfer", "TransferError", "WrongKey"]
