"""docs/metrics.md: every figure of a step's report, rendered from the names under which displays show them."""

from __future__ import annotations

from consumers.reporting.prometheus import LABELS, TOTALS, metric_name
from gyre_engine.reports.figures import FAMILIES, Family

INTRO = """# What a step reports

Generated from `gyre_engine/reports/figures.py` by `python -m infra.reference`.

Once a step is committed and the trees of its executions are read, the process `reporting` writes one
[`step-reported`](events.md#step-reported-version-1) event; what it says is shown in five places:

```
gyre tail training                                     # the events themselves
gyre sql "SELECT * FROM steps"                         # one row a step; member_times, drift and gap beside it
curl $(gyre status | sed -n 's/^metrics_url\\t//p')     # Prometheus: the newest step, and totals of the run
tensorboard --logdir .gyre/tensorboard                 # every step, a curve a figure; runs side by side (.venv/bin/tensorboard)
gyre run EXP.toml --set report.wandb=PROJECT           # Weights & Biases, after `uv sync --extra wandb`
```

Weights & Biases reads its key from the environment (`WANDB_API_KEY`) and nowhere else; with `report.wandb_mode = "offline"`
files stand in `.gyre/wandb` (below, W&B over restarts). `[report]` in [config.md](config.md) turns each of these off.

- **One report a step.** The first on the ledger counts; it is a pure function of the ledger and of the decisions and trees
  that the step needed, so neither the order in which topics are read nor a restart changes it. Only the gap is what was
  known when it was written (its event `probe-gap` may come at any time; the view `gap` has them all), and its ids stand
  among the report's causes.
- **Sampled tokens** are those of attempts whose trees were closed when admission decided their group, a choice that stands on
  the log. A group is often decided by a last attempt that ran out of time, before that one's tree is closed: then its tokens
  are in neither `tokens/sampled` nor the shares of it, and two runs of the same calls may differ by them. The view
  `sampled_by_step` counts all trees of a step's groups, however late they closed.
- **Restarts.** A report says in `resume` from where trees and cells must be read again; the ledger and the decisions are
  read whole. TensorBoard's file is written anew from the reports, Prometheus' totals are counted again.
- **W&B over restarts.** Online a start asks the server for its last step and sends those after it; W&B takes rows of rising
  steps only, so none is there twice. Offline W&B resumes nothing: each start of `reporting` writes a new folder
  `.gyre/wandb/wandb/offline-run-TIME-RUN` with all steps from the first on. `wandb sync` the newest alone: W&B replaces the
  rows of a run by those of the folder that was synced last. The library writes offline rows in blocks of 32 KB and the last
  ones when it ends, so after a kill -9 the newest folder may lack steps, even all, until the run goes on
  (`gyre run --resume`) and the next is written; the events and TensorBoard have them.
- **Memory** of the process: the open step; of committed steps that are not reported their seals; of undecided groups one
  number a model call, of decided ones a few numbers, until their step is reported; a gap a cell; one name a group of the
  run.
- What was not measured is left out (null in SQL): the entropy with `report.entropy = false`, the reference's KL without
  `loss.kl`, times and importance weights of steps that an earlier version committed. So is what is not a number, as one trained
  token can make a mean, a maximum, or a part of the loss: counts stay, and `sealed` tells whose micro-steps it was.
- **Before a step opens** it waits, one after the other, for its data (`time/data`: samplers are behind), for its role and burst
  (`time/burst`: the scheduler still wants the cell elsewhere) and to be made ready (`time/prepare`). Steps that an earlier version
  committed have all three in `time/data`, and the other two are left out.
- Executions are **scored** (in the baseline), **discarded** (overall time-out, cancelled, lost, ...), **failed** (their
  evaluation failed for good), or left out for another reason; each attempt counts. The reward is over the scored ones alone:
  look at the others beside it.

r is the importance weight of a trained token, exp(log-probability now - log-probability when it was sampled).

## Figures of a step

Prometheus adds the label `run`, and the label named here; TensorBoard and W&B append its value to the name (`drift/ratio_mean/1`).

| name | in Prometheus | label | unit | what it is | from |
|---|---|---|---|---|---|
"""

TOTALS_HEAD = """
## Totals of a run, in Prometheus

| name | label | what it is |
|---|---|---|
"""


def metrics_page() -> str:
    """docs/metrics.md"""
    rows = [_row(family) for family in FAMILIES]
    totals = [f"| `{name}_total` | {_code(LABELS[name])} | {text} |" for name, text in TOTALS.items()]
    step = "| `gyre_step` |  | The step that the figures are of; 0: none is reported yet. A gauge. |"
    return INTRO + "\n".join(rows) + "\n" + TOTALS_HEAD + "\n".join([step, *totals]) + "\n"


def _row(family: Family) -> str:
    formula = family.formula.replace("|", "\\|")
    return f"| `{family.name}` | `{metric_name(family)}` | {_code(family.label)} | {family.unit} | {formula} | {family.source} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
