"""One typed, documented config: every section is a frozen dataclass, every field says what it means and in which unit.

`docs/config.md` is generated from this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.config.learning import (
    BatchConfig,
    GroupConfig,
    LossConfig,
    OptimizerConfig,
    RoleConfig,
    SelectionConfig,
    TrainingConfig,
)
from gyre_engine.config.opt import opt


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The run as a whole."""

    name: str = opt("run", "Prefix of the run's name; the time is added.")
    steps: int = opt(10, "Optimizer updates to make.")
    seed: int = opt(0, "Seeds task order and sampling.")
    store: str = opt("", "fsspec URL for work products, checkpoints and archives; empty: a folder of the stack.")
    checkpoint_every: int = opt(10, "Steps between two checkpoints; the last step is always stored. 0: only the last.")
    checkpoint_keep: int = opt(0, "Newest checkpoints that stay when another is stored; 0: all.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The policy."""

    path: str = opt("", "Folder with the initial weights in Hugging Face form (config.json, model.safetensors, tokenizer.json).")
    name: str = opt("policy", "The name under which agents ask for the policy.")
    aliases: tuple[str, ...] = opt((), "Further names that mean the policy, e.g. those that a harness insists on.")
    renderer: str = opt("auto", "The renderer (package `renderers`) that turns messages into token ids, or MODULE:CLASS.")
    context: int = opt(4096, "Longest prompt + output in tokens.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModelConfig:
    """A further name that agents ask for, and what it stands for (learning rule 12). What is not the policy's is context."""

    name: str = opt("", 'The name that agents ask for; "*" is every name that stands nowhere else.')
    kind: str = opt(
        "policy",
        "policy; frozen (an engine with the policy's tokenizer that never changes); upstream (somebody's chat endpoint).",
    )
    url: str = opt("", "frozen: where it speaks SGLang's interface. upstream: what stands before /chat/completions.")
    model: str = opt("", "upstream: the name to ask it for; empty: the name that the agent asks for.")
    key_env: str = opt(
        "", "upstream: environment variable that holds its key; empty: it needs none. The key itself stands nowhere."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Sampling belongs to the run: these override what a client asks (learning rule 2)."""

    temperature: float = opt(1.0, "Sampling temperature; the trainer scales its logits by the same.")
    top_p: float = opt(1.0, "Nucleus; below 1 the tokens are truncated and not trained on.")
    top_k: int = opt(0, "0: off. Above 0 the tokens are truncated and not trained on.")
    max_tokens: int = opt(1024, "Most output tokens of one call.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsConfig:
    """Cells: what samples and trains."""

    count: int = opt(3, "K: number of cells; cell 0 is the core.")
    standalone: int = opt(0, "Engines beside the `count` cells that sample for ever: the standalone pool.")
    engine: str = opt("native", "native (torch on the CPU), sglang, or scripted (plays the answers in `script`).")
    sglang_python: str = opt(
        "",
        "For `sglang`: Python of an environment with SGLang for GPUs (tests/gpu/README.md); empty: SGLang on the CPU, as pinned here.",
    )
    engine_kv: str = opt(
        "none",
        "For `sglang`: how KV moves between its servers: none (it is computed again), or hicache (docs/kv.md; needs a GPU).",
    )
    engine_kv_mb: int = opt(4096, "For `hicache`: memory of the host for pages that can move, a rank of an engine.")
    script: str = opt("", "For `scripted`: a TOML file of answers, as docs/harnesses.md shows.")
    capacity: int = opt(64, "C_e: executions that one cell serves at once.")
    kv_tokens: int = opt(65536, "Tokens in the KV cache of one engine.")
    lease_s: float = opt(60.0, "A member of a step that shows no progress for this long is released.")
    threads: int = opt(1, "Torch threads a process.")
    tensor_parallel: int = opt(
        1,
        "Trainer processes of a cell that share each matrix; its trainer has tensor x pipeline x data processes (docs/parallel.md).",
    )
    pipeline_parallel: int = opt(1, "Trainer processes of a cell that share the layers.")
    data_parallel: int = opt(1, "Trainer processes of a cell that share the trees of a micro-step.")
    engine_args: tuple[str, ...] = opt((), 'For `sglang`: further arguments of its server, e.g. ["--tp-size", "2"].')
    record_routing: bool = opt(
        False,
        "For a mixture of experts: engines tell which experts computed each token, the calls' records keep it, and these very "
        "experts compute in training (docs/models.md).",
    )
    release_memory: bool = opt(
        False,
        "For an engine and a trainer that share a GPU: the engine gives its memory back while its cell trains (sglang: needs "
        '"--enable-memory-saver" in engine_args).',
    )
    host: str = opt(
        "127.0.0.1",
        "Address at which this host's engines and registered memory are reached. For cells on other hosts: one that they reach too; "
        "engines ask for no key, so only on a network of yours.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How weights, gradients and KV go from process to process."""

    kind: str = opt("tcp", "tcp (sockets), or verbs (RDMA cards, through pyverbs).")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishConfig:
    """How a new version reaches the engines."""

    fanout: int = opt(
        0, "Cells that read a new version from the core, and from each cell that has it; 0: all of them from the core."
    )
    patience_s: float = opt(10.0, "How long a cell waits for the one that it should read from, before it reads from the core.")
    inflight: str = opt(
        "continue",
        "Calls in flight at a publication: continue (under the new weights from the next token), or drain (the cell takes no new ones "
        "and loads the weights once they have ended).",
    )
    drain_s: float = opt(60.0, "For `drain`: how long they may take; then they go on under the new weights.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvConfig:
    """What engines keep of what they have computed."""

    across_versions: str = opt(
        "recompute",
        "KV of older weights: recompute (nothing is gone on from it), or keep (faster after a publication, and other than what the "
        "new weights would compute: events kv-kept and probe-gap tell by how much; native engines only).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The log."""

    bootstrap_servers: str = opt("", "Brokers of yours; empty: Gyre starts an embedded Apache Kafka.")
    host: str = opt(
        "127.0.0.1", "Address of the embedded broker; whoever reaches it reads and writes the log, so only on a network of yours."
    )
    port: int = opt(0, "Port of the embedded broker; 0: a free one, another after each start.")
    prefix: str = opt("gyre", "Prefix of every topic, group and transactional id.")
    partitions: int = opt(4, "Partitions of the execution-keyed topics of a new run.")
    replication: int = opt(0, "Replicas a topic; 0: 1 on the embedded broker, 3 elsewhere.")
    allow_weak: bool = opt(False, "Accept a broker of yours with fewer than 3 replicas or min.insync.replicas < 2.")
    delivery_timeout_s: float = opt(30.0, "How long an append may stay unacknowledged before it fails.")
    librdkafka: dict[str, str] = opt(dict, "Further librdkafka settings for every client (security.protocol, sasl.*, ssl.*).")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickHouseConfig:
    """Analytics."""

    enabled: bool = opt(True, "Whether events are kept in ClickHouse.")
    url: str = opt("", "A ClickHouse server of yours, http://user:password@host:port/database; empty: embedded chDB.")
    flush_ms: int = opt(500, "Longest time that a row waits for its batch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What each step came to, and where it is shown (docs/metrics.md)."""

    enabled: bool = opt(True, "Whether steps are reported: as events, to Prometheus, and where the keys below say.")
    host: str = opt("127.0.0.1", "Address of this host at which Prometheus gets the newest figures (/metrics).")
    port: int = opt(0, "Port; 0: a free one, which `gyre status` shows.")
    tensorboard: bool = opt(True, "Whether TensorBoard's files are written, in the stack's folder, tensorboard/RUN.")
    entropy: bool = opt(
        True, "Whether the policy's entropy is measured where loss.entropy is 0: a pass over the trained tokens' logits."
    )
    wandb: str = opt("", "Project in Weights & Biases (docs/metrics.md says how to install it); empty: nothing is sent.")
    wandb_mode: str = opt(
        "online", "online (its key is read from the environment, WANDB_API_KEY), or offline (files to `wandb sync`)."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The endpoint that agents call."""

    host: str = opt("127.0.0.1", "Address to bind.")
    port: int = opt(0, "Port; 0: a free one.")
    public_url: str = opt(
        "", "Where agents in a Harbor environment reach the proxy, e.g. http://host.docker.internal:{port} ({port} is filled in)."
    )
    quiet_s: float = opt(10.0, "A stream is opened after this long without a token, and kept alive at this pace.")
    wait_limit_s: float = opt(900.0, "How long a call waits for a sampling cell or for the log before a retryable error.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """Dispatching and running executions."""

    max_concurrent: int = opt(16, "Harnesses that run at once.")
    sandbox: str = opt("bubblewrap", "bubblewrap, or none (agents run with your rights: only for tasks you trust).")
    environment: str = opt(
        "sandbox",
        "sandbox: this machine's, as `sandbox` says. Else one of Harbor's environments (docker, podman, ...) or MODULE:CLASS.",
    )
    environment_options: dict[str, str] = opt(
        dict, "For a Harbor environment: its options by name; JSON where a value is JSON. No secrets: they stand on the log."
    )
    keep: tuple[str, ...] = opt(
        (), "For a Harbor environment: folders that are work too, beside its working directory and the task's artifacts."
    )
    overall_timeout_s: float = opt(14400.0, "Wall clock limit of an execution; beyond it the execution is discarded.")
    harness_timeout_s: float = opt(0.0, "Served time limit; 0: the task's [agent] timeout_sec.")
    task_filter: str = opt("none", "none, or pass-rate: tasks whose last group always or never solved them are not drawn again.")
    attempts: int = opt(3, "Attempts at one place of a group (lost engines, environments that do not come up).")
    memory_mb: int = opt(2048, "Memory of one workspace's processes.")
    processes: int = opt(128, "Processes of one workspace.")
    output_mb: int = opt(64, "Largest file that a workspace's process may write.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig:
    """The agent."""

    name: str = opt(
        "mini",
        "mini, mini-swe-agent, claude-code, codex, qwen-code, command, or one of Harbor's agents: harbor:AGENT, harbor:MODULE:CLASS.",
    )
    command: str = opt("", "For `command`: a line with {base_url}, {api_key}, {model}, {workspace}, {instruction}.")
    system: str = opt("", "For `mini`: the system message; empty: its own.")
    tools: tuple[str, ...] = opt(("write", "bash"), "For `mini`: the tools that it offers.")
    answer: str = opt(
        "",
        "For `mini` and a model that calls no tools: a file that keeps each answer; what `check` says of it but ok is the user's next "
        "turn.",
    )
    check: str = opt("", "For `mini`: a command whose output follows every write, e.g. the visible tests.")
    max_turns: int = opt(50, "Turn budget: model calls of one execution.")
    options: dict[str, str] = opt(
        dict, "For one of Harbor's agents: its options by name; JSON where a value is JSON. No secrets."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSourceConfig:
    """One [[data]] source."""

    name: str = opt("", "Name; empty: the folder's.")
    path: str = opt(
        "", "Folder of Harbor task directories (nested ones too), one such directory, or a registry.json[#NAME[@VERSION]]."
    )
    split: str = opt("train", "train, val or test. A task in two of them is refused.")
    weight: float = opt(1.0, "Share among the sources of its split.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringConfig:
    """The scorer whose scores admission reads."""

    scorer: str = opt("verifier", "verifier, or MODULE:CLASS.")
    attempts: int = opt(2, "Evaluations of one execution before a failure is final.")
    concurrent: int = opt(2, "Verifiers that run at once.")
    weights: dict[str, float] = opt(dict, "Weight of each key of a reward.json that has several.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation, apart from training."""

    every: int = opt(0, "Steps between two evaluations on `split`; 0: none.")
    split: str = opt("val", "Split of the evaluations during training.")
    before: str = opt("", "Split evaluated before the first step; empty: none.")
    after: str = opt("", "Split evaluated after the last step; empty: none.")
    tasks: int = opt(0, "Tasks of an evaluation; 0: all of the split.")
    samples: int = opt(1, "Executions a task.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The policy that switches roles (docs/scheduling.md)."""

    policy: str = opt("paper", "paper (elastic, as the paper has it), async (a fixed split) or colocate (all cells together).")
    slack: float = opt(
        1.0, "For `paper`: cells' worth of capacity that must be free when a cell leaves sampling; 1 is the paper's."
    )
    kv: str = opt(
        "auto", "KV of interrupted requests at a switch: auto (moved where that is faster by what was measured), always or never."
    )
    interrupted: str = opt(
        "continue",
        "A call that a switch, or the loss of its engine, interrupted: continue (elsewhere, from the very token), or retry (anew; "
        "what it had sampled is counted as discarded). One whose text a streaming client has begun to get is always continued.",
    )
    silence_s: float = opt(120.0, "A cell that has said nothing for this long counts as gone until it speaks again.")
    training_cells: int = opt(1, "For `async`: how many of the `cells.count` cells train for ever, the core among them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole experiment."""

    run: RunConfig = opt(RunConfig, "")
    model: ModelConfig = opt(ModelConfig, "")
    models: tuple[NamedModelConfig, ...] = opt((), "Models by name.")
    sampling: SamplingConfig = opt(SamplingConfig, "")
    cells: CellsConfig = opt(CellsConfig, "")
    transfer: TransferConfig = opt(TransferConfig, "")
    publish: PublishConfig = opt(PublishConfig, "")
    kv: KvConfig = opt(KvConfig, "")
    kafka: KafkaConfig = opt(KafkaConfig, "")
    clickhouse: ClickHouseConfig = opt(ClickHouseConfig, "")
    report: ReportConfig = opt(ReportConfig, "")
    proxy: ProxyConfig = opt(ProxyConfig, "")
    runner: RunnerConfig = opt(RunnerConfig, "")
    harness: HarnessConfig = opt(HarnessConfig, "")
    data: tuple[DataSourceConfig, ...] = opt((), "Task sources.")
    batch: BatchConfig = opt(BatchConfig, "")
    group: GroupConfig = opt(GroupConfig, "")
    selection: SelectionConfig = opt(SelectionConfig, "")
    roles: tuple[RoleConfig, ...] = opt((), "Rules of roles.")
    loss: LossConfig = opt(LossConfig, "")
    optimizer: OptimizerConfig = opt(OptimizerConfig, "")
    training: TrainingConfig = opt(TrainingConfig, "")
    scoring: ScoringConfig = opt(ScoringConfig, "")
    eval: EvalConfig = opt(EvalConfig, "")
    schedule: ScheduleConfig = opt(ScheduleConfig, "")
