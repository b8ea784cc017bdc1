"""What a trainer process is told, once, before it starts.

promises  nothing of it changes while the process lives; what a replay needs too is in `packing`, `loss` and `hyper`
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.batching.step_inputs import Packing
from gyre_engine.losses.config import LossConfig
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.training.mesh import ONE, Mesh
from gyre_engine.training.replica import Hyper, ReplicaOptions


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """`cell` trains with the model in `model_path`; `core` says whether it is the core cell's trainer."""

    cell: str
    core: bool
    holder: str
    """Name of this process life, unique."""
    model_path: str
    plan: ClassPlan
    packing: Packing
    lease_s: float
    checkpoint_url: str
    checkpoint_every: int
    checkpoint_keep: int = 0
    """0: all."""
    secret: bytes = field(default=b"", repr=False)
    """The stack's: opens registered memory, so that no capability stands in an event."""
    transfer: str = "tcp"
    """Kind (gyre_engine.transfer.kinds)."""
    transfer_host: str = "127.0.0.1"
    loss: LossConfig = field(default_factory=LossConfig)
    reference: str = ""
    """Folder of the reference policy's weights; empty: none is looked at."""
    hyper: Hyper = field(default_factory=Hyper)
    options: ReplicaOptions = field(default_factory=ReplicaOptions)
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    mesh: Mesh = ONE
    """The ranks of the cell."""
    scratch: str = ""
    """Folder for what the ranks need to find each other; empty: the machine's."""
    claim_ahead: int = 2
    """Micro-steps that a member holds at most: the one it computes and one ahead, to hide the round trip (log-rules, 5)."""
    straggler_s: float = 30.0
    """After so long without a batch the core names what it waits for."""
