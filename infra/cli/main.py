"""`gyre`: every command, its arguments, and nothing else.

promises  exit status 0 only when a command did what was asked, 2 where it was called wrongly, 128 and its number where a signal ended
          it; errors are lines that name the thing and the remedy
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from typer.exceptions import TyperException

from gyre_engine.config import load_config
from infra.cli.errors import fail, placed, plainly
from infra.cli.usage import MISUSE, READABLE, example, misused, wrongly_called
from infra.stack.layout import StackFolder

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
cells = typer.Typer(help="The cells of a run: list them, add some on the run's host, let one leave.", no_args_is_help=True)
cell = typer.Typer(help="A cell on this host for a run elsewhere.", no_args_is_help=True)
app.add_typer(cells, name="cells")
app.add_typer(cell, name="cell")
INTERRUPTED = 130
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or latest.")]
RunOption = Annotated[str, typer.Option(metavar="RUN", help="A run's name, or latest.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Over the config, e.g. batch.groups=8; may be repeated."),
]


@app.callback(invoke_without_command=True)
def gyre(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    """Train agents by reinforcement learning on an event log; look at runs, replay them, ask them in SQL."""
    if version:
        print(f"gyre {importlib.metadata.version('gyre')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(MISUSE)


@app.command(epilog=example("run"))
@plainly
def run(
    experiment: Annotated[Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment's TOML file.")] = None,
    set_: Overrides = None,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this run (or latest), as it is pinned on the log.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the config and what it names.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show the program's own log.")] = False,
) -> None:
    """Train: start what the config asks for, show progress, stop what was started."""
    if (experiment is None) == (not resume):
        misused("run", "say what to run: an EXPERIMENT.toml, or --resume RUN (one of them)")
    if resume and set_:
        misused("run", "--resume goes on with what the run is pinned to; --set is for new runs")
    from infra.cli.running import Interrupted, quiet_logging, to_resume, train
    from infra.stack.checks import check_before_start

    quiet_logging(verbose)
    resumed = to_resume(resume, StackFolder.here()) if resume else None
    config = resumed.config if resumed else load_config(cast(Path, experiment), set_ or [])
    with placed(experiment, set_ or []):
        if check:
            check_before_start(config)
            print("the config can be run")
            return
        try:
            train(config, StackFolder.here(), Console(), resumed=resumed)
        except Interrupted as interrupted:
            fail(interrupted, interrupted.status)


@app.command(epilog=example("replay"))
@plainly
def replay(
    run: Run = "latest",
    verify: Annotated[bool, typer.Option("--verify", help="Compare every step with the log; not with --set.")] = False,
    until: Annotated[int, typer.Option(min=0, help="Last step to make; 0: all.")] = 0,
    set_: Overrides = None,
) -> None:
    """Train again from the log and the initial weights alone."""
    if verify and set_:
        misused("replay", "--verify compares with what the run was trained with; --set changes that (one of them)")
    from infra.cli.attach import attach
    from infra.cli.replaying import in_words, replay_run

    console = Console()
    with attach(run) as attached:
        verdict = replay_run(attached, console, verify=verify, until=until, overrides=set_ or [])
    console.print(in_words(attached.info.run, verdict), highlight=False, soft_wrap=True)


@app.command(epilog=example("sql"))
@plainly
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A SELECT; tables have the topics' names with _, SHOW TABLES lists them.")
    ],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="tsv, csv, json, jsonl, parquet, ... or any of ClickHouse's.")
    ] = None,
) -> None:
    """Ask ClickHouse: rows of every topic, while the run goes on or later."""
    from infra.cli.asking import ask

    raise typer.Exit(ask(StackFolder.here(), query, format_))


@app.command(epilog=example("runs"))
@plainly
def runs() -> None:
    """List the runs on this folder's log, and how each ended."""
    from gyre_engine.log.kafka import KafkaLog
    from infra.cli.attach import kafka
    from infra.cli.looking import runs as show

    folder = StackFolder.here()
    with kafka(folder) as settings:
        log = KafkaLog(settings, "-")
        try:
            show(log, folder, Console())
        finally:
            log.close()


@app.command(epilog=example("tail"))
@plainly
def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help=f"One of {', '.join(READABLE)}.")],
    run: RunOption = "latest",
    execution: Annotated[str, typer.Option(metavar="EXECUTION", help="Only events of this execution.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also what comes.")] = False,
) -> None:
    """Print a topic's events as JSON lines (of one run; the topic `runs` is of all runs)."""
    from infra.cli.attach import attach
    from infra.cli.looking import tail as lines

    with attach(run) as attached, attached.log() as log:
        for line in lines(log, topic, execution=execution, follow=follow):
            print(line, flush=follow)


@app.command(epilog=example("trees"))
@plainly
def trees(
    execution: Annotated[str, typer.Argument(metavar="EXECUTION", help="An execution, or latest.")] = "latest",
    run: RunOption = "latest",
    calls: Annotated[bool, typer.Option("--calls", help="A line for every call.")] = False,
) -> None:
    """Draw an execution's trajectory tree: its branches, what was selected of them, what was left out, and why."""
    from gyre_engine.config import config_from_json
    from infra.cli.attach import attach
    from infra.cli.trees import draw_tree
    from infra.stack import wiring

    with attach(run) as attached, attached.log() as log:
        started = attached.info.started
        settings = wiring.admission(config_from_json(started.config), started.config_hash)
        draw_tree(log, execution, settings, Console(), calls=calls)


@app.command(epilog=example("score"))
@plainly
def score(
    scorer: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The scorer, e.g. my_scorer:MyScorer.")],
    run: RunOption = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> None:
    """Run a scorer of yours over a run's history, in a consumer group of its own."""
    from infra.cli.attach import attach
    from infra.cli.judging import score as judge

    sys.path.insert(0, str(Path.cwd()))
    with attach(run) as attached:
        print(judge(attached, scorer, StackFolder.here(), follow=follow))


@app.command("eval", epilog=example("eval"))
@plainly
def evaluate(
    what: Annotated[
        str, typer.Argument(metavar="RUN@STEP|FOLDER", help="A checkpoint, e.g. latest@20, or a folder with a model.")
    ],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    config: Annotated[Path | None, typer.Option(help="For a model folder: the experiment that says how.")] = None,
    tasks: Annotated[int, typer.Option(min=0, help="Tasks; 0: all of the split.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Executions a task.")] = 1,
) -> None:
    """Evaluate a checkpoint or a model; nothing is trained."""
    from infra.cli.judging import evaluate as measure

    console = Console()
    with placed(config):
        report = measure(what, config, split, tasks, samples, StackFolder.here(), console)
    interval = f"[{report.low:.4f}, {report.high:.4f}]"
    console.print(f"{what} on {split}: {report.mean:.4f} {interval}, {report.episodes} episodes", highlight=False, markup=False)


@cells.command("list", epilog=example("cells list"))
@plainly
def list_cells(
    run: RunOption = "latest",
    json_: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """The cells of a run: role, state of life, weights, load, and where each engine is reached."""
    from infra.cli.attach import attach
    from infra.cli.cells import list_cells as show

    with attach(run) as attached, attached.log() as log:
        show(log, attached.info, Console(), as_json=json_)


@cells.command("add", epilog=example("cells add"))
@plainly
def add_cells(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    wait: Annotated[bool, typer.Option(help="Until they are up.")] = True,
) -> None:
    """Start cells more on the run's own host, for the run that goes on in this folder."""
    from gyre_engine.config import config_from_json
    from infra.cli.attach import attach_running
    from infra.cli.cells import add_cells as add

    with attach_running() as attached, attached.log() as log:
        names = add(log, config_from_json(attached.info.started.config), count, wait)
        print(f"{', '.join(names)}: {'up' if wait else 'asked for'}")


@cells.command("drain", epilog=example("cells drain"))
@plainly
def drain_cell(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Its name, as `gyre cells list` has it.")],
    wait: Annotated[bool, typer.Option(help="Until it has left.")] = True,
) -> None:
    """Let a cell leave the run: its calls move on, what it has trained is handed over, its processes end."""
    from infra.cli.attach import attach_running
    from infra.cli.cells import drain_cell as drain

    with attach_running() as attached, attached.log() as log:
        drain(log, cell, wait)
        print(f"{cell} {'has left' if wait else 'was asked to leave'} {log.run}")


@cell.command("start", epilog=example("cell start"))
@plainly
def start_cell(
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT", help="The run's Kafka brokers.")],
    run: RunOption = "latest",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="This host's address, as the run's hosts reach it.")] = "127.0.0.1",
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A copy of cell-key from the .gyre folder of the run's host.")
    ] = None,
    name: Annotated[str, typer.Option(help="The cell's name; empty: this host's and a few letters.")] = "",
    prefix: Annotated[str, typer.Option(help="kafka.prefix of the run.")] = "gyre",
    client: Annotated[
        Path | None, typer.Option("--command-config", metavar="FILE", help="librdkafka settings (TLS, SASL), NAME=VALUE a line.")
    ] = None,
    other_hardware: Annotated[
        bool, typer.Option("--other-hardware", help="Join although this processor or torch rounds otherwise than the run's.")
    ] = False,
) -> None:
    """A cell on this host for a run elsewhere, until it has left (Ctrl-C) or the run is over."""
    from infra.cli.cells import Way
    from infra.cli.cells import start_cell as begin
    from infra.cli.running import quiet_logging

    quiet_logging(False)
    way = Way(bootstrap, prefix, client)
    print(begin(way, run, host=host, name=name, key=key, other_hardware=other_hardware, folder=StackFolder.here()))


@app.command(epilog=example("doctor"))
@plainly
def doctor(tasks: Annotated[Path | None, typer.Option(help="A folder of task directories to check.")] = None) -> None:
    """What is missing on this machine, and the remedy."""
    from infra.cli.doctor import examine

    found = examine(tasks)
    for each in found:
        print(f"{'WRONG' if each.wrong else 'ok':6}{each.what:9}{each.text}")
    raise typer.Exit(int(any(each.wrong for each in found)))


@app.command(epilog=example("up"))
@plainly
def up() -> None:
    """Start this folder's broker and ClickHouse, and keep them up until Ctrl-C or `gyre stop`."""
    from infra.cli.running import quiet_logging
    from infra.stack.standing import stand

    quiet_logging(True)
    stand(StackFolder.here())


@app.command(epilog=example("status"))
@plainly
def status() -> None:
    """The processes of this folder's stack, how far each consumer is behind (lag, in events), and the addresses."""
    from infra.cli.looking import status as show

    raise typer.Exit(show(Console()))


@app.command(epilog=example("stop"))
@plainly
def stop() -> None:
    """End the stack that runs in this folder."""
    from infra.supervisor.state import stop_stack

    if not stop_stack(StackFolder.here().root):
        fail("no stack runs in this folder")
    print("stopped")


def main() -> None:
    """The program's entry."""
    try:
        raise SystemExit(app(standalone_mode=False))
    except TyperException as error:
        wrongly_called(error)
    except typer.Abort:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
