"""`gyre trees`: an execution's trajectory tree in the terminal: its branches, what was selected or left out of them, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from gyre_engine.admission import AdmissionSettings
from gyre_engine.events.calls import TreeClosed, TreeNode
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import AdmittedExecution, GroupAdmitted, LeftOut, SelectedTrajectory
from gyre_engine.log.port import Log
from gyre_engine.trees.branches import Branch, branches_of
from gyre_engine.trees.select import Odds, Selection, select
from infra.cli.errors import CommandError, nearest

SHORT = 8
"""Letters of a call's name that are shown."""
UNBOUNDED = 1_000
"""Columns of a line that no terminal shows: nothing is cut off for those who read on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an execution. trained: whether what is selected was trained on."""

    text: str
    trained: bool = False


def draw_tree(log: Log, execution: str, settings: AdmissionSettings, console: Console, *, calls: bool = False) -> None:
    """The tree of an execution, or of the `latest` that was closed. `calls`: with a line for every call. Raises CommandError."""
    tree = _closed_tree(log, execution)
    if not console.is_terminal:
        console.width = UNBOUNDED
    for part in drawing(tree, _verdict(log, tree), settings, calls=calls):
        console.print(part, highlight=False)


def drawing(tree: TreeClosed, verdict: Verdict, settings: AdmissionSettings, *, calls: bool = False) -> tuple[Tree, str]:
    """What is drawn: the tree, and how to read it."""
    chosen = select(tree.execution, tree.nodes, settings.selection)
    notes = _notes(tree.nodes, chosen, verdict)
    count = _count(len(tree.nodes), "call")
    title = f"{tree.execution}  {count}, {tree.sampled_tokens:,} tokens sampled, delivered {tree.delivered:.2f}\n{verdict.text}"
    root, branches = Tree(Text(title)), branches_of(tree.nodes)
    drawn: list[Tree] = []
    for branch in branches:
        above = drawn[branch.parent] if branch.parent >= 0 else root
        drawn.append(above.add(_label(branch, branches, notes, calls=calls)))
    order = ", ".join(role.value for role in settings.selection.train_roles)
    return root, f"at most {settings.selection.j_max} trajectories an execution (selection.j_max), by class: {order}"


def _label(branch: Branch, branches: Sequence[Branch], notes: Mapping[str, Sequence[Text]], *, calls: bool) -> Text:
    """A branch's line, those of its calls where they are asked for, and what is noted of its leaf."""
    label = Text(_headline(branch, branches))
    for call in branch.calls:
        if calls:
            label.append(f"\n  {call.node[:SHORT]}  at {call.cut:,}: +{call.new_input_tokens:,} in, +{call.output_tokens:,} out")
        for note in notes.get(call.node, ()):
            label.append("\n  ").append_text(note)
    return label


def _headline(branch: Branch, branches: Sequence[Branch]) -> str:
    first, last = branch.calls[0], branch.calls[-1]
    names = first.node[:SHORT] if first is last else f"{first.node[:SHORT]}..{last.node[:SHORT]}"
    read, sampled = sum(c.new_input_tokens for c in branch.calls), sum(c.output_tokens for c in branch.calls)
    where = "" if branch.parent < 0 or branches[branch.parent].calls[-1].node == first.parent else f", off {_parent(first)}"
    return f"{branch.role.value}  {names}  {_count(len(branch.calls), 'call')} at {first.cut:,}{where}: +{read:,} in, +{sampled:,} out"


def _parent(call: TreeNode) -> str:
    return (call.parent or "")[:SHORT]


def _notes(nodes: Sequence[TreeNode], chosen: Selection, verdict: Verdict) -> dict[str, list[Text]]:
    """By leaf: drawn as which and how, or left out and why."""
    notes: defaultdict[str, list[Text]] = defaultdict(list)
    for number, (path, odds) in enumerate(zip(chosen.trajectories, chosen.odds, strict=True), 1):
        word = "trained" if verdict.trained else "would be selected"
        notes[path.leaf].append(Text(f"{word}, draw {number}: {_how(path, odds)}", style="green"))
    for out in chosen.left_out:
        notes[out.what].append(Text(f"left out: {_count(out.tokens, 'token')}, {_why(out)}", style="yellow"))
    return notes


def _how(path: SelectedTrajectory, odds: Odds) -> str:
    """Which tokens a drawn leaf adds, and how likely it was."""
    if odds.leaves == 1:
        among = f"the only leaf of {path.role} with tokens left"
    else:
        among = f"one of {odds.leaves} leaves of {path.role}, {odds.weight:,} of their {odds.total:,} unmasked tokens"
    return f"+{_count(path.trained_tokens, 'token')} ({among})"


def _why(out: LeftOut) -> str:
    match out.reason.split(" ", 1):
        case ["j-max"]:
            return "J_max is reached"
        case ["untrainable"]:
            return "their calls may not be trained on (`untrainable` in model-calls)"
        case ["role", role]:
            return f"{role} is not among the classes that train"
        case _:
            return out.reason


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _closed_tree(log: Log, execution: str) -> TreeClosed:
    closed = {r.event.execution: r.event for r in log.read("trees") if isinstance(r.event, TreeClosed)}
    if not closed:
        raise CommandError(f"no execution of {log.run} has a closed tree yet: trees close when executions end")
    if execution == "latest":
        return closed[next(reversed(closed))]
    if execution not in closed:
        near = nearest(execution, closed)
        raise CommandError(f"no closed tree of execution {execution!r} on the log.{near} `gyre tail trees` lists them")
    return closed[execution]


def _verdict(log: Log, tree: TreeClosed) -> Verdict:
    """What the log says of the execution."""
    name = tree.execution
    for group in (r.event for r in log.read("trajectories") if isinstance(r.event, GroupAdmitted)):
        for admitted in group.executions:
            if admitted.execution == name:
                return _admitted(tree, group, admitted)
        if (reason := _left_out(name, group.left_out)) is not None:
            return Verdict(f"not trained on: {reason}")
    for record in log.read("executions"):
        if isinstance(record.event, Dispatched) and record.event.execution == name and record.event.evaluation is not None:
            return Verdict("an evaluation: not trained on; shown is what would be selected")
    return Verdict("its group is not decided yet; shown is what would be selected")


def _admitted(tree: TreeClosed, group: GroupAdmitted, admitted: AdmittedExecution) -> Verdict:
    if not group.trains:
        return Verdict(f"not trained on: group {group.group} does not train ({group.reason}); reward {admitted.reward:.3g}")
    return Verdict(
        f"group {group.group}: reward {admitted.reward:.3g}, advantage {admitted.advantage:+.3g} (mean {group.mean:.3g} of "
        f"{_count(len(group.executions), 'execution')}); {admitted.trained_tokens:,} of {tree.sampled_tokens:,} tokens trained",
        trained=True,
    )


def _left_out(name: str, left_out: Iterable[LeftOut]) -> str | None:
    return next((out.reason for out in left_out if out.what == name), None)
