"""`gyre`: every command, its arguments, and nothing else.

promises  exit status 0 only when a command did what was asked; errors are one line that names the thing and the remedy
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gyre_engine.config import load_config
from infra.cli.errors import fail, plainly
from infra.stack.layout import StackFolder

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train agents by reinforcement learning on an event log; look at runs, replay them, ask them in SQL.",
)
Run = Annotated[str, typer.Argument(help="A run's name, or latest.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over the config.")]


@app.command()
@plainly
def run(
    experiment: Annotated[Path | None, typer.Argument(help="The experiment's TOML file.")] = None,
    set_: Overrides = None,
    resume: Annotated[str, typer.Option(help="Go on with this run (or latest), as it is pinned on the log.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only check the config and what it names.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
) -> None:
    """Train: start what the config asks for, show progress, stop what was started."""
    from infra.cli.running import Interrupted, quiet_logging, to_resume, train
    from infra.stack.checks import check_before_start

    quiet_logging(verbose)
    if (experiment is None) == (not resume):
        fail("say what to run: an EXPERIMENT.toml, or --resume RUN")
    if resume and set_:
        fail("--resume goes on with what the run is pinned to; --set is for new runs")
    if experiment is None:
        resume, config = to_resume(resume, StackFolder.here())
    else:
        config = load_config(experiment, set_ or [])
    if check:
        check_before_start(config)
        print("the config can be run")
        return
    try:
        train(config, StackFolder.here(), Console(), resume=resume)
    except Interrupted:
        fail("interrupted: the run was stopped in order; `gyre run --resume latest` goes on with it")


@app.command()
@plainly
def replay(
    run: Run = "latest",
    verify: Annotated[bool, typer.Option("--verify", help="Compare every step with the log.")] = False,
    until: Annotated[int, typer.Option(help="Last step to make; 0: all.")] = 0,
    set_: Overrides = None,
) -> None:
    """Train again from the log and the initial weights alone."""
    from infra.cli.attach import attach
    from infra.cli.replaying import replay_run

    console = Console()
    with attach(run) as attached:
        verdict = replay_run(attached, console, verify=verify, until=until, overrides=set_ or [])
    if verdict.verified is False:
        fail(f"replay differs from the log: {verdict.problem}")
    if not verdict.steps:
        fail(f"{attached.info.run} has no committed step to replay")
    said = "verified: every step's micro-steps and weights are those on the log" if verdict.verified else "made, nothing compared"
    console.print(f"{attached.info.run}: {verdict.steps} steps {said}", highlight=False, soft_wrap=True)


@app.command()
@plainly
def sql(
    query: Annotated[str, typer.Argument(help="A SELECT; tables carry the topics' names with _.")],
    format_: Annotated[
        str | None, typer.Option("--format", help="tsv, csv, json, jsonl, parquet, ... or any of ClickHouse's.")
    ] = None,
) -> None:
    """Ask ClickHouse: rows of every topic, while the run goes on or later."""
    from infra.cli.asking import ask

    raise typer.Exit(ask(StackFolder.here(), query, format_))


@app.command()
@plainly
def runs() -> None:
    """List the runs on this folder's log."""
    from gyre_engine.log.kafka import KafkaLog
    from infra.cli.attach import kafka
    from infra.cli.looking import runs as show

    with kafka(StackFolder.here()) as settings:
        log = KafkaLog(settings, "-")
        try:
            show(log, Console())
        finally:
            log.close()


@app.command()
@plainly
def tail(
    topic: str,
    run: Annotated[str, typer.Option(help="A run's name, or latest.")] = "latest",
    execution: Annotated[str, typer.Option(help="Only events of this execution.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also what comes.")] = False,
) -> None:
    """Print a topic's events as JSON lines."""
    from infra.cli.attach import attach
    from infra.cli.looking import tail as lines

    with attach(run) as attached, attached.log() as log:
        for line in lines(log, topic, execution=execution, follow=follow):
            print(line, flush=follow)


@app.command()
@plainly
def trees(
    execution: Annotated[str, typer.Argument(help="An execution, or latest.")] = "latest",
    run: Annotated[str, typer.Option(help="A run's name, or latest.")] = "latest",
) -> None:
    """Draw an execution's trajectory tree."""
    from infra.cli.attach import attach
    from infra.cli.looking import draw_tree

    with attach(run) as attached, attached.log() as log:
        draw_tree(log, execution, Console())


@app.command()
@plainly
def score(
    scorer: Annotated[str, typer.Argument(help="MODULE:CLASS of the scorer.")],
    run: Annotated[str, typer.Option(help="A run's name, or latest.")] = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> None:
    """Run a scorer of yours over a run's history, in a consumer group of its own."""
    from infra.cli.attach import attach
    from infra.cli.judging import score as judge

    sys.path.insert(0, str(Path.cwd()))
    with attach(run) as attached:
        print(judge(attached, scorer, StackFolder.here(), follow=follow))


@app.command("eval")
@plainly
def evaluate(
    what: Annotated[str, typer.Argument(help="RUN@STEP, or a model folder.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    config: Annotated[Path | None, typer.Option(help="For a model folder: the experiment that says how.")] = None,
    tasks: Annotated[int, typer.Option(help="Tasks; 0: all of the split.")] = 0,
    samples: Annotated[int, typer.Option(help="Executions a task.")] = 1,
) -> None:
    """Evaluate a checkpoint or a model; nothing is trained."""
    from infra.cli.judging import evaluate as measure

    console = Console()
    report = measure(what, config, split, tasks, samples, StackFolder.here(), console)
    interval = f"[{report.low:.4f}, {report.high:.4f}]"
    console.print(f"{what} on {split}: {report.mean:.4f} {interval}, {report.episodes} episodes", highlight=False, markup=False)


@app.command()
@plainly
def doctor(tasks: Annotated[Path | None, typer.Option(help="A folder of task directories to check.")] = None) -> None:
    """What is missing on this machine, and the remedy."""
    from infra.cli.doctor import examine

    found = examine(tasks)
    for each in found:
        print(f"{'WRONG' if each.wrong else 'ok':6}{each.what:9}{each.text}")
    raise typer.Exit(int(any(each.wrong for each in found)))


@app.command()
@plainly
def up() -> None:
    """Start this folder's broker and ClickHouse, and keep them up until Ctrl-C or `gyre stop`."""
    from infra.cli.running import quiet_logging
    from infra.stack.standing import stand

    quiet_logging(True)
    stand(StackFolder.here())


@app.command()
@plainly
def status() -> None:
    """The processes of this folder's stack."""
    from infra.cli.looking import status as show

    raise typer.Exit(show(Console()))


@app.command()
@plainly
def stop() -> None:
    """End the stack that runs in this folder."""
    from infra.supervisor.state import stop_stack

    if not stop_stack(StackFolder.here().root):
        fail("no stack runs in this folder")
    print("stopped")


def main() -> None:
    """The program's entry."""
    app()


if __name__ == "__main__":
    main()
