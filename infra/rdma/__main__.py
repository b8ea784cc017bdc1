"""`python -m infra.rdma 'COMMAND'`: run a shell command in the Soft-RoCE VM, in this checkout's root. MEMORY_MB=2048 LIMIT_S=600."""

from __future__ import annotations

import os
import sys

from infra.rdma.fetch import NotToBeHad
from infra.rdma.vm import run

if __name__ == "__main__":
    try:
        outcome = run(
            " ".join(sys.argv[1:]) or "ibv_devinfo",
            memory_mb=int(os.environ.get("MEMORY_MB", "2048")),
            limit_s=float(os.environ.get("LIMIT_S", "600")),
        )
    except NotToBeHad as error:
        sys.exit(f"gyre: no Soft-RoCE VM here: {error}")
    print(outcome.output)
    sys.exit(1 if outcome.rc is None else outcome.rc)
