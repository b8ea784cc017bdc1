"""The questions that come with Gyre, as views over the deduplicated tables. docs/sql.md shows each with an example.

Every view has the column `run`; times are UTC, durations in seconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumers.analytics.schema import tables


@dataclass(frozen=True, slots=True)
class View:
    """A question: the name it is asked by, what it answers, and how."""

    name: str
    answers: str
    select: str

    def create(self) -> str:
        """DDL of the view."""
        return f"CREATE OR REPLACE VIEW `{self.name}` AS {self.select}"


REWARD_BY_STEP = View(
    "reward_by_step",
    "mean reward, loss and gradient norm of each committed step",
    """
SELECT run, step, at, reward_mean, loss, grad_norm, executions, metrics['targets'] AS trained_tokens,
       metrics['clip_fraction'] AS clip_fraction
FROM training WHERE type = 'step-committed' ORDER BY run, step""",
)

STEPS = View(
    "steps",
    "when each step opened, committed and was published, by whom it was computed, how stale its data were, and what it came to",
    """
WITH
  opened AS (SELECT run, core_epoch, step, attempt, at AS opened_at, length(groups) AS groups, length(micro_steps) AS micro_steps,
             staleness_max, staleness_mean FROM training WHERE type = 'step-opened'),
  published AS (SELECT run, assumeNotNull(weight_version) AS version, min(at) AS published_at FROM training
                WHERE type = 'published' GROUP BY run, version),
  reported AS (SELECT * FROM training WHERE type = 'step-reported' ORDER BY offset LIMIT 1 BY run, step)
SELECT c.run AS run, c.step AS step, c.attempt AS attempt, o.opened_at AS opened_at, c.at AS committed_at,
       dateDiff('millisecond', o.opened_at, c.at) / 1000 AS seconds, o.groups AS groups, c.executions AS executions,
       o.micro_steps AS micro_steps, arrayMap(m -> m.1, c.merge_order) AS cells, o.staleness_max AS staleness_max,
       o.staleness_mean AS staleness_mean, nullIf(p.published_at, toDateTime64(0, 6, 'UTC')) AS published_at,
       c.loss AS loss, r.policy_loss AS policy_loss, r.kl_loss AS kl_loss, r.entropy_loss AS entropy_loss, c.grad_norm AS grad_norm,
       r.lr AS lr, r.skipped AS skipped, r.entropy AS entropy, r.kl AS kl, r.reference_kl AS reference_kl,
       r.clip_fraction AS clip_fraction, r.ratio_max AS ratio_max, r.ratio_tails AS ratio_tails, r.gap_max AS gap_max,
       r.gap_mean AS gap_mean, r.gap_version AS gap_version, r.trained_tokens AS trained_tokens, r.packed_tokens AS packed_tokens,
       r.sampled_tokens AS sampled_tokens, r.delivered_tokens AS delivered_tokens, r.delivered AS delivered_fraction,
       r.trained AS trained_fraction, r.dedup_ratio AS dedup_ratio, r.decided_groups AS decided_groups,
       r.zero_variance_groups AS zero_variance_groups, c.reward_mean AS reward_mean, r.scored_executions AS scored_executions,
       r.discarded_executions AS discarded_executions, r.failed_executions AS failed_executions, r.data_s AS data_s,
       r.burst_s AS burst_s, r.prepare_s AS prepare_s, r.released_members AS released_members
FROM (SELECT * FROM training WHERE type = 'step-committed') AS c
LEFT JOIN opened AS o ON o.run = c.run AND o.core_epoch = c.core_epoch AND o.step = c.step AND o.attempt = c.attempt
LEFT JOIN published AS p ON p.run = c.run AND p.version = c.step
LEFT JOIN reported AS r ON r.run = c.run AND r.step = c.step
ORDER BY run, step""",
)

SAMPLED_BY_STEP = View(
    "sampled_by_step",
    "what all attempts at the groups of each step sampled, however late their trees closed",
    """
WITH
  opened AS (SELECT run, core_epoch, step, attempt, groups FROM training WHERE type = 'step-opened'),
  trained AS (SELECT run, step, core_epoch, attempt, metrics['targets'] AS trained_tokens FROM training WHERE type = 'step-committed'),
  stepped AS (SELECT c.run AS run, c.step AS step, c.trained_tokens AS trained_tokens, arrayJoin(o.groups) AS group
              FROM trained AS c INNER JOIN opened AS o
              ON o.run = c.run AND o.core_epoch = c.core_epoch AND o.step = c.step AND o.attempt = c.attempt),
  closed AS (SELECT run, extract(execution, '^(.+)[.][0-9]+[.][0-9]+$') AS group, sampled_tokens AS sampled, tree_tokens AS kept
             FROM trees WHERE type = 'tree-closed')
SELECT s.run AS run, s.step AS step, count() AS executions, sum(t.sampled) AS sampled_tokens, sum(t.kept) AS delivered_tokens,
       delivered_tokens / sampled_tokens AS delivered_fraction, any(s.trained_tokens) / sampled_tokens AS trained_fraction
FROM stepped AS s INNER JOIN closed AS t ON t.run = s.run AND t.group = s.group
GROUP BY run, step ORDER BY run, step""",
)

MEMBER_TIMES = View(
    "member_times",
    "where each member's time went in each step, in seconds: computing, waiting, merging, publishing",
    """
SELECT run, step, m.cell AS cell, m.micro_steps AS micro_steps, m.trained_tokens AS trained_tokens, m.compute_s AS compute_s,
       m.wait_s AS wait_s, m.merge_s AS merge_s, m.publish_s AS publish_s
FROM (SELECT run, assumeNotNull(step) AS step, members FROM training WHERE type = 'step-reported' ORDER BY offset LIMIT 1 BY run, step)
ARRAY JOIN members AS m ORDER BY run, step, cell""",
)

STALENESS = View(
    "staleness",
    "by how many versions the training data of each step were behind",
    """
SELECT run, step, attempt, at, staleness_max, staleness_mean, executions, length(groups) AS groups
FROM training WHERE type = 'step-opened' ORDER BY run, step, attempt""",
)

DRIFT = View(
    "drift",
    "how far the policy has moved on the trained tokens since they were sampled, by staleness",
    """
SELECT run, step, at, toInt64(extract(key, '^drift_(-?[0-9]+)_tokens$')) AS staleness, metrics[key] AS tokens,
       measures[concat('drift_', toString(staleness), '_ratio_mean')] AS ratio_mean,
       measures[concat('drift_', toString(staleness), '_ratio_max')] AS ratio_max,
       measures[concat('drift_', toString(staleness), '_gap_mean')] AS log_ratio_mean
FROM (SELECT *, arrayJoin(mapKeys(metrics)) AS key, CAST(metrics, 'Map(String, Nullable(Float64))') AS measures
      FROM training WHERE type = 'step-committed')
WHERE match(key, '^drift_-?[0-9]+_tokens$') ORDER BY run, step, staleness""",
)

GAP = View(
    "gap",
    "how far engine and trainer are apart on the same tokens at the same version; kept_tokens: on top of KV of older weights",
    """
SELECT run, at, cell, weight_version, tokens, gap_max, gap_mean, ifNull(kept_tokens, 0) AS kept_tokens
FROM cells WHERE type = 'probe-gap' ORDER BY run, at, cell, kept_tokens""",
)

WATER_LEVEL_TIMELINE = View(
    "water_level_timeline",
    "executions dispatched, started, terminated and out there over time, beside what can be served and what is ready",
    """
SELECT run, at, dispatched, started, terminated, level, sampling_capacity, length(sampling_cells) AS sampling,
       length(training_cells) AS training, length(switching_cells) AS switching, ready_groups, committed_step
FROM water_level ORDER BY run, at, offset""",
)

ROLE_TIMELINE = View(
    "role_timeline",
    "who did what when: one row for each stretch of time a cell spent in a role",
    """
WITH
  last AS (SELECT run, max(at) AS until FROM (SELECT run, at FROM cells UNION ALL SELECT run, at FROM training
           UNION ALL SELECT run, at FROM water_level) GROUP BY run),
  marks AS (
    SELECT run, cell, at, offset, toString(role) AS role, took_us FROM cells WHERE type IN ('cell-started', 'role-changed')
    UNION ALL
    SELECT run, cell, at - toIntervalMicrosecond(assumeNotNull(took_us)) AS at, offset - 1 AS offset, 'switching' AS role, took_us
    FROM cells WHERE type = 'role-changed' AND took_us > 0)
SELECT m.run AS run, assumeNotNull(m.cell) AS cell, m.role AS role, m.at AS at,
       leadInFrame(m.at, 1, greatest(l.until, m.at)) OVER (PARTITION BY m.run, m.cell ORDER BY m.at, m.offset
         ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS until,
       dateDiff('microsecond', at, until) / 1e6 AS seconds
FROM marks AS m INNER JOIN last AS l ON l.run = m.run ORDER BY run, cell, at, m.offset""",
)

UTILISATION = View(
    "utilisation",
    "the share of its time that each cell spent in each role",
    """
SELECT run, cell, role, sum(seconds) AS in_role, in_role / nullIf(sum(in_role) OVER (PARTITION BY run, cell), 0) AS share
FROM role_timeline WHERE role != 'left' GROUP BY run, cell, role ORDER BY run, cell, role""",
)

SAMPLING_TRAINING_OVERLAP = View(
    "sampling_training_overlap",
    "for how long a run sampled and trained at the same time, did only one of them, or neither",
    """
WITH
  changes AS (
    SELECT run, at, toInt64(role = 'sampling') AS sampling, toInt64(role = 'training') AS training FROM role_timeline
    UNION ALL
    SELECT run, until AS at, -toInt64(role = 'sampling') AS sampling, -toInt64(role = 'training') AS training FROM role_timeline),
  levels AS (
    SELECT run, at, sum(sum(sampling)) OVER w AS sampling, sum(sum(training)) OVER w AS training,
           dateDiff('microsecond', at, leadInFrame(at, 1, at) OVER (PARTITION BY run ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING
             AND UNBOUNDED FOLLOWING)) / 1e6 AS seconds
    FROM changes GROUP BY run, at WINDOW w AS (PARTITION BY run ORDER BY at))
SELECT run, sumIf(seconds, sampling > 0 AND training > 0) AS both, sumIf(seconds, sampling > 0 AND training = 0) AS only_sampling,
       sumIf(seconds, sampling = 0 AND training > 0) AS only_training, sumIf(seconds, sampling = 0 AND training = 0) AS neither,
       both / nullIf(sum(seconds), 0) AS overlap
FROM levels GROUP BY run ORDER BY run""",
)

BRANCHES_PER_EXECUTION = View(
    "branches_per_execution",
    "the shape of each execution's tree: calls, roots, leaves by role, tokens",
    """
WITH arrayFilter(n -> NOT has(nodes.parent, n.node), nodes) AS leaf_nodes
SELECT run, execution, length(nodes) AS calls, countEqual(nodes.parent, NULL) AS roots, length(leaf_nodes) AS leaves,
       arrayCount(n -> n.role = 'main', leaf_nodes) AS main, arrayCount(n -> n.role = 'main-summary', leaf_nodes) AS main_summary,
       arrayCount(n -> n.role = 'sub-agent', leaf_nodes) AS sub_agent,
       arrayCount(n -> n.role = 'sub-agent-summary', leaf_nodes) AS sub_agent_summary,
       arrayCount(n -> n.role = 'side', leaf_nodes) AS side, arrayCount(n -> n.role = 'abandoned', leaf_nodes) AS abandoned,
       sampled_tokens, tree_tokens, delivered
FROM trees WHERE type = 'tree-closed' ORDER BY run, execution""",
)

TOKENS_PER_SECOND = View(
    "tokens_per_second",
    "tokens sampled, prompted, taken from caches and trained on, a second, in windows of ten seconds",
    """
SELECT run, window, sum(sampled) / 10 AS sampled, sum(prompted) / 10 AS prompted, sum(cached) / 10 AS cached,
       sum(trained) / 10 AS trained, sum(calls) / 10 AS calls
FROM (
  SELECT run, toStartOfInterval(at, toIntervalSecond(10)) AS window,
         output_tokens + ifNull(discarded_tokens, 0) AS sampled, prompt_tokens AS prompted,
         cached_tokens AS cached, 0 AS trained, 1 AS calls FROM model_calls WHERE type = 'model-call'
  UNION ALL
  SELECT run, toStartOfInterval(at, toIntervalSecond(10)) AS window, 0 AS sampled, 0 AS prompted, 0 AS cached, tokens AS trained,
         0 AS calls FROM training WHERE type = 'sealed')
GROUP BY run, window ORDER BY run, window""",
)

DISCARDS_BY_DURATION = View(
    "discards_by_duration",
    "executions by tenth of their duration, and how many of each tenth were discarded: whether the long ones are lost",
    """
SELECT run, tenth, count() AS executions, countIf(type = 'discarded') AS discarded, discarded / executions AS share,
       min(wall_us) / 1e6 AS shortest, max(wall_us) / 1e6 AS longest, groupUniqArrayIf(toString(reason), type = 'discarded') AS reasons
FROM (
  SELECT run, type, reason, wall_us, ntile(10) OVER (PARTITION BY run ORDER BY wall_us, execution ROWS BETWEEN UNBOUNDED PRECEDING
         AND UNBOUNDED FOLLOWING) AS tenth
  FROM executions WHERE type IN ('finished', 'discarded'))
GROUP BY run, tenth ORDER BY run, tenth""",
)

LONG_EXECUTIONS_LOST = View(
    "long_executions_lost",
    "whether the overall time-out takes the long executions: `alert` where the longest tenth loses more than the rest",
    """
SELECT run, countIf(long) AS longest, countIf(long AND lost) AS longest_lost, countIf(NOT long) AS rest,
       countIf(NOT long AND lost) AS rest_lost, longest_lost * rest > rest_lost * longest AS alert
FROM (
  SELECT run, type = 'discarded' AS lost,
         row_number() OVER (PARTITION BY run ORDER BY wall_us DESC, lost DESC, execution)
           <= greatest(1, intDiv(count() OVER (PARTITION BY run), 10)) AS long
  FROM executions WHERE type = 'finished' OR (type = 'discarded' AND reason = 'overall-timeout'))
GROUP BY run ORDER BY run""",
)

EVENT_TO_ROW = View(
    "event_to_row",
    "milliseconds from an event to its row, a topic",
    "\nUNION ALL\n".join(
        f"""SELECT run, '{table.name}' AS table, count() AS rows, round(quantile(0.5)(ms), 1) AS p50_ms,
       round(quantile(0.99)(ms), 1) AS p99_ms, round(max(ms), 1) AS max_ms
FROM (SELECT run, dateDiff('microsecond', at, ingested_at) / 1e3 AS ms FROM {table.name}) GROUP BY run"""  # noqa: S608 - names of our own
        for table in tables().values()
    ),
)

EXECUTIONS_OVERVIEW = View(
    "executions_overview",
    "one row an execution: where it came from, how it ended, what it sampled, what it earned, what was trained on",
    """
WITH
  lives AS (
    SELECT run, execution, anyIf(group, type = 'dispatched') AS group, anyIf(index, type = 'dispatched') AS index,
           anyIf(attempt, type = 'dispatched') AS attempt, anyIf(query, type = 'dispatched') AS query,
           anyIf(split, type = 'dispatched') AS split, anyIf(harness, type = 'dispatched') AS harness,
           anyIf(weight_version, type = 'dispatched') AS weight_version, anyIf(evaluation, type = 'dispatched') AS evaluation,
           minIfOrNull(at, type = 'dispatched') AS dispatched_at, minIfOrNull(at, type = 'started') AS started_at,
           minIfOrNull(at, type IN ('finished', 'discarded')) AS ended_at,
           argMinIf(if(type = 'finished', toString(ending), concat('discarded: ', toString(reason))), (at, offset),
             type IN ('finished', 'discarded')) AS ending,
           anyIf(served_us, type = 'finished') / 1e6 AS served, anyIf(wall_us, type IN ('finished', 'discarded')) / 1e6 AS wall
    FROM executions GROUP BY run, execution),
  calls AS (SELECT run, execution, count() AS calls, sum(output_tokens + ifNull(discarded_tokens, 0)) AS sampled_tokens,
            max(prompt_tokens + output_tokens) AS longest_context FROM model_calls WHERE type = 'model-call' GROUP BY run, execution),
  tools AS (SELECT run, execution, count() AS tool_calls FROM tool_events WHERE type = 'tool-called' GROUP BY run, execution),
  scored AS (SELECT run, execution, argMin(reward, (at, offset)) AS reward FROM scores
             WHERE type = 'scored' GROUP BY run, execution),
  admitted AS (SELECT run, e.execution AS execution, toNullable(any(e.advantage)) AS advantage,
               toNullable(any(e.trained_tokens)) AS trained_tokens FROM trajectories ARRAY JOIN executions AS e
               WHERE trains GROUP BY run, execution)
SELECT l.run AS run, l.execution AS execution, l.group AS group, l.index AS index, l.attempt AS attempt, l.query AS query,
       l.split AS split, l.harness AS harness, l.weight_version AS weight_version, l.evaluation AS evaluation,
       l.dispatched_at AS dispatched_at, l.started_at AS started_at, l.ended_at AS ended_at, l.ending AS ending,
       l.served AS served, l.wall AS wall, c.calls AS calls,
       c.sampled_tokens AS sampled_tokens, c.longest_context AS longest_context, t.tool_calls AS tool_calls, s.reward AS reward,
       a.advantage AS advantage, a.trained_tokens AS trained_tokens
FROM lives AS l
LEFT JOIN calls AS c ON c.run = l.run AND c.execution = l.execution
LEFT JOIN tools AS t ON t.run = l.run AND t.execution = l.execution
LEFT JOIN scored AS s ON s.run = l.run AND s.execution = l.execution
LEFT JOIN admitted AS a ON a.run = l.run AND a.execution = l.execution
ORDER BY run, l.dispatched_at, execution""",
)

WORK_BY_CELL = View(
    "work_by_cell",
    "how much of each step each cell computed",
    """
SELECT run, step, attempt, assumeNotNull(cell) AS cell, sum(length(micro_steps)) AS micro_steps, sum(tokens) AS trained_tokens,
       sum(packed_tokens) AS packed_tokens, sum(took_us) / 1e6 AS seconds
FROM training WHERE type = 'sealed' GROUP BY run, step, attempt, cell ORDER BY run, step, attempt, cell""",
)

UNKNOWN_FIELDS = View(
    "unknown_fields",
    "fields that newer producers write and this version does not know, counted by name (their values stand in `raw`)",
    "\nUNION ALL\n".join(
        f"""SELECT run, topic, type, arrayJoin(unknown_fields) AS field, count() AS events
FROM {table.name} GROUP BY run, topic, type, field"""  # noqa: S608 - names of our own
        for table in tables().values()
    ),
)

LATEST_RUN = View(
    "latest_run",
    "the run that started last: `WHERE run = (SELECT run FROM latest_run)`",
    """
SELECT run, started_at FROM (
  SELECT run, max(at) AS started_at FROM runs WHERE type = 'run-started' GROUP BY run)
ORDER BY started_at DESC, run DESC LIMIT 1""",
)

VIEWS: tuple[View, ...] = (
    REWARD_BY_STEP,
    STEPS,
    SAMPLED_BY_STEP,
    MEMBER_TIMES,
    STALENESS,
    DRIFT,
    GAP,
    WATER_LEVEL_TIMELINE,
    ROLE_TIMELINE,
    UTILISATION,
    SAMPLING_TRAINING_OVERLAP,
    BRANCHES_PER_EXECUTION,
    TOKENS_PER_SECOND,
    DISCARDS_BY_DURATION,
    LONG_EXECUTIONS_LOST,
    EVENT_TO_ROW,
    EXECUTIONS_OVERVIEW,
    WORK_BY_CELL,
    UNKNOWN_FIELDS,
    LATEST_RUN,
)
"""In an order in which each finds what it reads."""


def create_views() -> tuple[str, ...]:
    """The statements that make every view."""
    return tuple(view.create() for view in VIEWS)
