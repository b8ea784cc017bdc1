"""Prometheus: the newest step's figures and the run's totals, as text at http://HOST:PORT/metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gyre_engine.events.reports import StepReported
from gyre_engine.reports.figures import FAMILIES, Family, figures

TOTALS = {
    "gyre_steps": "Committed steps.",
    "gyre_run_tokens": "Tokens of all steps, by kind: trained, packed, sampled, delivered.",
    "gyre_run_groups": "Decided groups, by outcome: trains, or why not.",
    "gyre_run_executions": "Executions of the steps' groups, by outcome: scored, or why they were left out.",
}
"""Counters over the run; Prometheus adds `_total` to their names. A restart of this process counts them again from the log."""


class PortTaken(OSError):
    """The port cannot be bound; the text names it and the remedy."""


class Totals:
    """Sums over the reports of a run: (counter, label) -> value."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, str]] = Counter()

    def add(self, report: StepReported) -> None:
        self.values["gyre_steps", ""] += 1
        tokens = (report.trained_tokens, report.packed_tokens, report.sampled_tokens, report.delivered_tokens)
        for kind, count in zip(("trained", "packed", "sampled", "delivered"), tokens, strict=True):
            self.values["gyre_run_tokens", kind] += count
        self.values["gyre_run_groups", "trains"] += report.decided_groups - sum(report.untrained_groups.values())
        self.values["gyre_run_executions", "scored"] += report.scored_executions
        for name, counts in (("gyre_run_groups", report.untrained_groups), ("gyre_run_executions", report.left_out_executions)):
            for reason, count in counts.items():
                self.values[name, reason] += count


LABELS = {"gyre_steps": "", "gyre_run_tokens": "kind", "gyre_run_groups": "outcome", "gyre_run_executions": "outcome"}


class Prometheus(Collector):
    """Serves from its making on. Raises PortTaken."""

    name = "Prometheus"

    def __init__(self, run: str, host: str, port: int) -> None:
        self._run, self._totals = run, Totals()
        self._now: tuple[Metric, ...] = (self._step(0),)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise PortTaken(
                f"nothing can be bound at {host}:{port} ({error}): set report.port to a free port, or to 0 for any"
            ) from error
        self.port = int(self._server.server_port)

    def show(self, report: StepReported) -> None:
        """Replace what is served, whole."""
        self._totals.add(report)
        self._now = (self._step(report.step), *self._gauges(report), *self._counters())

    def collect(self) -> Iterator[Metric]:
        """Asked by the server's threads: what was put together last."""
        yield from self._now

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _step(self, step: int) -> Metric:
        gauge = GaugeMetricFamily("gyre_step", "The step that the figures are of; 0: none is reported yet.", labels=("run",))
        gauge.add_metric((self._run,), step)
        return gauge

    def _gauges(self, report: StepReported) -> Iterator[Metric]:
        found: dict[str, list[tuple[str, float]]] = {}
        for figure in figures(report):
            found.setdefault(figure.family.name, []).append((figure.at, figure.value))
        for family in FAMILIES:
            if family.name in found:
                yield self._gauge(family, found[family.name])

    def _gauge(self, family: Family, values: list[tuple[str, float]]) -> Metric:
        labels = ("run", family.label) if family.label else ("run",)
        gauge = GaugeMetricFamily(metric_name(family), family.formula, labels=labels)
        for at, value in values:
            gauge.add_metric((self._run, at) if family.label else (self._run,), value)
        return gauge

    def _counters(self) -> Iterator[Metric]:
        for name, text in TOTALS.items():
            label = LABELS[name]
            counter = CounterMetricFamily(name, text, labels=("run", label) if label else ("run",))
            for (of, at), value in sorted(self._totals.values.items()):
                if of == name:
                    counter.add_metric((self._run, at) if label else (self._run,), value)
            yield counter


def metric_name(family: Family) -> str:
    """`gyre_loss_policy` of `loss/policy`."""
    return "gyre_" + family.name.replace("/", "_")
