"""What a step came to, from the events of training, trajectories, trees and cells: a pure fold, no clock, no randomness.

`groups` counts what a group's executions sampled and earned, `steps` puts a committed step together, `fold` knows when one is
complete, `figures` are the names under which displays show a report (docs/metrics.md).
"""

from gyre_engine.reports.figures import Figure, figures
from gyre_engine.reports.fold import Report, Reports

__all__ = ["Figure", "Report", "Reports", "figures"]
