"""The live display and the final table on a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumers.dashboard.view import RunView
from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cells import CellState, Fleet

BARS = " ▁▂▃▄▅▆▇█"
STYLE = {CellRole.SAMPLING: "cyan", CellRole.TRAINING: "magenta", CellRole.SWITCHING: "yellow", CellRole.LEFT: "dim"}


@dataclass(slots=True)
class Rate:
    """Tokens a second between two looks at a counter."""

    at: float = 0.0
    tokens: int = 0
    value: float = 0.0

    def look(self, tokens: int, now: float) -> float:
        if now - self.at >= 2.0:
            if self.at:
                self.value = max(0, tokens - self.tokens) / (now - self.at)
            self.at, self.tokens = now, tokens
        return self.value


@dataclass(slots=True)
class Display:
    """Renders a RunView; keeps only what a rate needs."""

    run: str
    began: float
    rate: Rate = field(default_factory=Rate)

    def render(self, view: RunView, now: float) -> RenderableType:
        """The whole display at monotonic time `now`."""
        minutes, seconds = divmod(int(now - self.began), 60)
        head = Text.assemble(
            ("gyre ", "bold"), self.run, f"   step {view.step}/{view.steps}   {minutes}:{seconds:02d}   ",
            f"{self.rate.look(view.sampled.tokens, now):,.0f} tokens/s",
        )  # fmt: skip
        parts: list[RenderableType] = [head, self._cells(view), Text(_water(view)), Text(_reward(view))]
        if view.waiting:
            parts.append(Text(f"waiting for {', '.join(view.waiting.waiting_for[:4])}", style="yellow"))
        if alert := view.time_outs.alert:
            parts.append(Text(alert, style="yellow"))
        return Group(*parts)

    def _cells(self, view: RunView) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for cell in in_order(view.fleet):
            table.add_row(cell.cell, Text(cell.role.value, style=STYLE[cell.role]), f"v{cell.version}", _load(view.fleet, cell))
        return table


def in_order(fleet: Fleet) -> list[CellState]:
    """All cells, those too that are lost or have left."""
    return sorted(fleet.cells.values(), key=lambda cell: (cell.position, cell.cell))


def _load(fleet: Fleet, cell: CellState) -> str:
    if fleet.lost(cell.cell):
        return "lost: it says nothing"
    if not cell.healthy:
        return "engine away"
    return f"{cell.running} calls" if cell.role is CellRole.SAMPLING else ""


def _water(view: RunView) -> str:
    water = view.water
    if water is None:
        return "water level: -"
    return (
        f"water level {water.level}  (dispatched {water.dispatched}, started {water.started}, ended {water.terminated}; "
        f"capacity {water.sampling_capacity}; groups ready {water.ready_groups})"
    )


def _reward(view: RunView) -> str:
    rewards = [c.reward_mean for c in view.committed]
    if not rewards:
        return "reward: -"
    return f"reward {rewards[-1]:.3f}  {sparkline(rewards[-48:])}"


def sparkline(values: list[float]) -> str:
    """Values between 0 and 1 as bars."""
    return "".join(BARS[round(min(max(v, 0.0), 1.0) * (len(BARS) - 1))] for v in values)


def one_line(view: RunView) -> str:
    """Progress for logs: what a run without a terminal prints after a step."""
    roles = " ".join(f"{cell.cell}:{'?' if view.fleet.lost(cell.cell) else cell.role.value[0]}" for cell in in_order(view.fleet))
    reward = f"{view.committed[-1].reward_mean:.3f}" if view.committed else "-"
    level = view.water.level if view.water else 0
    skipped = f"  skipped steps {view.skipped}" if view.skipped else ""
    skipped += f"  steps with nothing to train on {view.empty}" if view.empty else ""
    return f"step {view.step}/{view.steps}  reward {reward}  water level {level}  {roles}  switches {view.switches}{skipped}"


def _steps(view: RunView) -> str:
    """Those without an update are told."""
    told = [str(view.step)]
    told += [f"{view.skipped} of them skipped (no finite gradient)"] if view.skipped else []
    told += [f"{view.empty} with nothing to train on"] if view.empty else []
    return ", ".join(told)


def final_table(view: RunView, console: Console, seconds: float) -> None:
    """The summary of a run that is over."""
    table = Table(title="run", show_header=False)
    for report in view.evaluations:
        interval = f"{report.mean:.3f}  [{report.low:.3f}, {report.high:.3f}]  ({report.episodes} episodes)"
        table.add_row(f"reward on {report.split}, version {report.version}", interval)
    table.add_row("steps", _steps(view))
    again = f", {view.tried_again} tried again" if view.tried_again else ""
    table.add_row("executions", f"{view.dispatched} dispatched, {view.finished} finished, {view.discarded} discarded{again}")
    table.add_row("tokens", f"{view.sampled.tokens:,} sampled, {view.trained_tokens:,} trained")
    table.add_row("role switches", str(view.switches))
    table.add_row("errors seen by agents", str(view.agent_errors))
    gap = "not measured" if view.gap_version is None else f"{view.gap_max:.2e}  (versions up to {view.gap_version})"
    table.add_row("largest gap engine/trainer", gap)
    if view.kept_gap_max:
        table.add_row("largest gap on KV of older weights", f"{view.kept_gap_max:.2e}")
    table.add_row("seconds", f"{seconds:.0f}")
    console.print(table)
    if alert := view.time_outs.alert:
        console.print(alert, style="yellow", highlight=False, soft_wrap=True)
