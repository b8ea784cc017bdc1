"""A config that cannot work is refused at once, by a message that names the key and the remedy."""

import json
from pathlib import Path

import pytest

from gyre_engine.config import Config, ConfigError, config_from_json, config_hash, load_config, to_json, with_overrides
from gyre_engine.config.problems import Source, key_lines
from gyre_engine.config.schema import ScheduleConfig


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(text)
    return path


def test_a_wrong_key_names_its_line_and_the_nearest_right_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nsteps = 3\n\n[selection]\njmax = 4\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert f"{path}, line 5" in str(error.value)
    assert '[selection] has no key "jmax". Did you mean "j_max"' in str(error.value)


def test_a_wrong_section_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'line 2: there is no section "smapling". Did you mean "sampling"'):
        load_config(write(tmp_path, "\n[smapling]\ntemperature = 1\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[batch]\ngroups = "many"\n', r"line 2: batch.groups must be int \(a whole number\), got 'many' \(str\)"),
        ("[batch]\ngroups = 0\n", "batch.groups must be at least 1, got 0"),
        ("[batch]\ngroups = true\n", "batch.groups must be int"),
        ('[cells]\nengine = "vllm"\n', "cells.engine must be one of native, sglang, scripted; got 'vllm'"),
        ("[batch]\ngroup_size = 1\n", "no group could train"),
        ('[harness]\nname = "command"\n', "harness.command is empty"),
        ('[[data]]\npath = "x"\nsplit = "dev"\n', "data.split must be train, val or test; got 'dev'"),
        ("[run\n", "config error in .*exp.toml, line 1, column 5: not valid TOML: Expected"),
        ('[[roles]]\nrole = "titel"\nsystem = "x"\n', "line 2: roles.role must be one of main, main-summary"),
        ('[[roles]]\nuser = "(oops"\n', r"line 2: roles.user is no regular expression: .* in '\(oops'"),
        ('[[roles]]\nrole = "side"\n', "must look at something"),
        ('[[roles]]\ntools = "many"\n', "roles.tools must be one of any, some, none; got 'many'"),
        ('[schedule]\ninterrupted = "drop"\n', "schedule.interrupted must be one of continue, retry; got 'drop'"),
        ('[cells]\nengine_kv = "hicache"\n', 'set cells.engine = "sglang"'),
        ('[cells]\nengine_kv = "mooncake"\n', "cells.engine_kv must be one of none, hicache; got 'mooncake'"),
        ('[kv]\nacross_versions = "keep"\n[cells]\nengine = "sglang"\n', "only the native engine tells what it keeps"),
        ('[publish]\ninflight = "abort"\n', "publish.inflight must be one of continue, drain; got 'abort'"),
        ("[publish]\ndrain_s = 0\n", "publish.drain_s must be above 0"),
        ("[optimizer]\nlr = -1.0\n", "optimizer.lr must be above 0 and at most 10, got -1.0"),
        ("[optimizer]\nlr = nan\n", "optimizer.lr must be above 0"),
        ("[sampling]\ntop_p = 7.0\n", "sampling.top_p must be above 0 and at most 1, got 7.0"),
        ("[sampling]\ntemperature = 0\n", "sampling.temperature must be above 0"),
        (
            '[loss]\nname = "xx"\n',
            'line 2: loss.name has no "xx"; choose one of ppo, grpo, dr-grpo, dapo, .*; of installed packages: none',
        ),
        ('[loss]\nname = "gpso"\n', 'of installed packages: none .*. Did you mean "gspo"'),
        ('[loss]\naggregate = "tokens"\n', "loss.aggregate must be one of two-level, token, sequence, constant; got 'tokens'"),
        (
            '[loss]\naggregate = "constant"\n',
            "line 2: loss.aggregate is .constant.: give the tokens to divide by in loss.constant",
        ),
        ("[loss]\nconstant = 100\n", 'line 2: loss.constant is given, but loss.aggregate is "two-level"'),
        ("[loss]\nclip_low = 1.5\n", "loss.clip_low must be above 0 and at most 1, got 1.5"),
        ('[loss]\nreference = "base"\n', "line 2: loss.reference is given, but loss.kl is 0: it would be ignored"),
        ("[loss]\nkl = -0.1\n", "loss.kl must be at least 0"),
        ("[loss]\nentropy = nan\n", "loss.entropy must be at least 0"),
        ('[loss]\nkl_estimator = "k4"\n', "loss.kl_estimator must be one of k1, k2, k3; got 'k4'"),
        (
            '[optimizer]\nschedule = "cosinus"\n',
            'line 2: optimizer.schedule must be one of .*; got .cosinus.. Did you mean "cosine"',
        ),
        (
            '[optimizer]\nschedule = "cosine"\nwarmup_steps = 10\n',
            r"line 3: optimizer.decay_steps \(10\) must be above .*warmup_steps",
        ),
        (
            '[optimizer]\nschedule = "wsd"\nwarmup_steps = 6\nwsd_steps = 5\n',
            r"line 4: optimizer.wsd_steps \(5\) must fit between warmup_steps \(6\) and decay_steps \(10\)",
        ),
        ("[optimizer]\nmin_lr = 0.1\n", r"line 2: optimizer.min_lr \(0.1\) is above optimizer.lr \(0.0002\)"),
        (
            '[optimizer]\nweight_decay = 0.1\nweight_decay_schedule = "linear"\n',
            r"optimizer.weight_decay only rises: weight_decay_end \(0\) is below it \(0.1\)",
        ),
        ('[optimizer]\nnonfinite = "ignore"\n', "optimizer.nonfinite must be one of stop, skip; got 'ignore'"),
        ('[training]\ndtype = "float16"\n', "line 2: training.dtype must be one of float32, bfloat16; got 'float16'"),
        ('[training]\ndevice = "gpu"\n', "line 2: training.device must be one of cpu, cuda; got 'gpu'"),
        ('[group]\nscale = "std"\n', "group.scale must be one of deviation, none; got 'std'"),
        ("[run]\ncheckpoint_keep = -1\n", "run.checkpoint_keep must be at least 0"),
        ('[runner]\ntask_filter = "hard"\n', "runner.task_filter must be one of none, pass-rate; got 'hard'"),
        ('[eval]\nafter = "nope"\n', "eval.after must be one of"),
        ('[run]\nname = "a.b"\n', "line 2: run.name must be a word of letters, digits, - and _"),
        ("[proxy]\nport = 70000\n", "line 2: proxy.port must be at least 0 and at most 65535, got 70000"),
        ("[run]\nsteps = 0\n", "exp.toml, line 2: run.steps must be at least 1, got 0"),
        ("[data]\npath = 'x'\n", r"line 1: data must be a list of tables: write \[\[data\]\], got"),
        ("[[data]]\nweight = 0\n", "line 2: data.weight must be above 0, got 0.0"),
        ("batch = 3\n", r"line 1: batch must be a section, \[batch\], got 3"),
        ("[selection]\nroles = ['main', 3]\n", r"line 2: selection.roles must be str \(a text in quotes\), got 3"),
        (
            "[selection]\nroles = ['main', 'mian']\n",
            "line 2: selection.roles may hold main, main-summary, .*; got 'mian'. Did you mean \"main\"",
        ),
        ('[schedule]\npolicy = "elastic"\n', 'line 2: schedule.policy must be .*; got .elastic.. It is now called "paper"$'),
        (
            '[schedule]\npolicy = "asynch"\n',
            'line 2: schedule.policy must be one of paper, .*; got .asynch.. Did you mean "async"',
        ),
        (
            '[schedule]\npolicy = "async"\ntraining_cells = 4\n',
            r"line 3: schedule.training_cells \(4\) is above cells.count \(3\)",
        ),
        ('[schedule]\npolicy = "async"\ntraining_cells = 3\n', "line 3: .* no cell samples; lower it, or set cells.standalone"),
        ("[schedule]\ntraining_cells = 0\n", "schedule.training_cells must be at least 1, got 0"),
        ('[transfer]\nkind = "verb"\n', 'line 2: transfer.kind must be one of tcp, verbs; got .verb.. Did you mean "verbs"'),
        ("[publish]\nfanout = -1\n", "line 2: publish.fanout must be at least 0, got -1"),
        ("[cells]\nstandalone = -1\n", "cells.standalone must be at least 0, got -1"),
        ("[model]\ncontext = 10\n", "leaves no room for a prompt in model.context"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*nothing.toml: No such file"):
        load_config(tmp_path / "nothing.toml")


def test_overrides_are_typed_and_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nsteps = 3\n")
    config = load_config(path, ["run.steps=7", "model.name=tiny", "selection.roles=['main']"])
    assert (config.run.steps, config.model.name, config.selection.roles) == (7, "tiny", ("main",))
    with pytest.raises(ConfigError, match="write section.key=value"):
        load_config(path, ["steps=7"])
    with pytest.raises(
        ConfigError, match=r"config error in --set run.steps: run.steps must be int \(a whole number\), got 'abc'"
    ):
        load_config(path, ["run.steps=abc"])
    with pytest.raises(ConfigError, match="Did you mean"):
        with_overrides(config, ["run.step=7"])


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[model]\npath = "model"\n[[data]]\npath = "tasks/train"\n'))
    assert config.model.path == str(tmp_path / "model")
    assert (config.data[0].path, config.data[0].name) == (str(tmp_path / "tasks/train"), "train")


def test_json_round_trip_keeps_all_but_secrets() -> None:
    config = with_overrides(Config(), ["clickhouse.url='http://me:pw@host:8123/db'"])
    text = to_json(with_overrides(config, ["kafka.librdkafka={'sasl.password' = 'pw', 'security.protocol' = 'SSL'}"]))
    assert "pw" not in text
    assert config_from_json(text).kafka.librdkafka["security.protocol"] == "SSL"
    assert config_hash(to_json(Config())) == config_hash(to_json(config_from_json(to_json(Config()))))


def test_a_run_of_the_time_of_one_policy_can_be_read() -> None:
    """Its policy was called elastic: the paper's."""
    tree = json.loads(to_json(Config()))
    del tree["schedule"]
    old = json.dumps({**tree, "scheduling": {"policy": "elastic", "slack": 0.5}})
    assert config_from_json(old).schedule == ScheduleConfig(policy="paper", slack=0.5)


def test_a_split_of_all_cells_is_allowed_beside_a_standalone_pool(tmp_path: Path) -> None:
    text = '[schedule]\npolicy = "async"\ntraining_cells = 3\n[cells]\nstandalone = 1\n'
    assert load_config(write(tmp_path, text)).schedule.training_cells == 3


EVERYTHING = """\
[run]
stepz = 3                  # 2: no such key

[batch]
groups = 0                 # 5: out of range
group_size = "eight"       # 6: wrong type

[sampling]
max_tokens = 9000          # 9: no room in model.context

[[data]]
path = "a"

[[data]]
path = "b"
split = "vall"             # 16: no such split

[loss]
name = "pppo"              # 19: no such loss
"""


def test_all_that_is_wrong_is_told_at_once_a_line_each_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, EVERYTHING)
    with pytest.raises(ConfigError) as error:
        load_config(path, ["optimizer.lr=-1.0"])
    lines = str(error.value).splitlines()
    assert {line.partition(": ")[0] for line in lines} == {
        "config error in --set optimizer.lr", *(f"config error in {path}, line {n}" for n in (2, 5, 6, 9, 16, 19))
    }  # fmt: skip
    assert len(lines) == 7
    assert 'line 19: loss.name has no "pppo"; choose one of ppo, grpo, ' in str(error.value)
    assert 'Did you mean "ppo"?' in str(error.value)


def test_a_default_in_the_place_of_a_wrong_value_is_not_blamed(tmp_path: Path) -> None:
    """128 tokens of context are fewer than the default of max_tokens (1024), which stands in for the misspelt key."""
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, "[model]\ncontext = 128\n[sampling]\nmax_token = 64\n"))
    assert len(error.value.problems) == 1
    assert 'Did you mean "max_tokens"' in str(error.value)


def test_values_that_do_not_fit_are_placed_where_one_of_them_is_written(tmp_path: Path) -> None:
    path = write(tmp_path, "[group]\n\nmin = 9\n")
    with pytest.raises(ConfigError, match=r"line 3: batch.group_size \(8\) is below group.min \(9\)"):
        load_config(path)


LINES = '''\
run.name = "dotted"        # 1
clickhouse = {url = "[x]"} # 2
[harness]                  # 3
system = """
[batch]
max_turns = 7
"""                        # 4 to 7
tools = [
  "write",
]                          # 8 to 10
"max_turns" = 9            # 11
[[data]]                   # 12
path = "a"
[kafka.librdkafka]         # 14
"ssl.ca" = "x"
[[data]]                   # 16
# split = "no"
split = 'test'             # 18
'''


def test_lines_are_those_of_the_keys_whatever_else_looks_like_one() -> None:
    found = key_lines(LINES)
    assert found[("run", "name")] == 1
    assert found[("clickhouse",)] == 2
    assert (found[("harness", "system")], found[("harness", "tools")], found[("harness", "max_turns")]) == (4, 8, 11)
    assert (found[("data", 0)], found[("data", 0, "path")]) == (12, 13)
    assert found[("kafka", "librdkafka", "ssl.ca")] == 15
    assert (found[("data", 1)], found[("data", 1, "split")]) == (16, 18)
    assert ("batch",) not in found


def test_a_value_in_an_inline_table_has_the_line_of_its_table() -> None:
    assert Source(Path("e.toml"), LINES).where([("clickhouse", "flush_ms")]) == "e.toml, line 2"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.steps.more=1", "run.steps is no section whose keys can be set"),
        ("data.path=x", "data is no section whose keys can be set"),
        ("run.=1", "write section.key=value"),
        ("run=1", "write section.key=value"),
    ],
)
def test_an_override_that_names_no_key_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, "[run]\nsteps = 3\n[[data]]\npath = 'x'\n"), [override])


SET = "[optimizer]\nlr = 1e-3\n[batch]\ngroup_size = 8\n"


@pytest.mark.parametrize(
    ("override", "name", "message"),
    [
        ("optimizer.lr=banana", "optimizer.lr", r"optimizer.lr must be float \(a number\), got 'banana'"),
        ("optimizer.lrr=1", "optimizer.lrr", r'\[optimizer\] has no key "lrr". Did you mean "lr"'),
        ("optimzer.lr=1", "optimzer.lr", 'there is no section "optimzer". Did you mean "optimizer"'),
        ("optimizer.betas.first=1", "optimizer.betas.first", r'\[optimizer\] has no key "betas"'),
        ("optimizer. lr=banana", "optimizer.lr", "optimizer.lr must be float"),
        ('optimizer."lr"=true', "optimizer.lr", "optimizer.lr must be float"),
        ("optimizer.lr!=1", "optimizer.lr", "write section.key=value"),
        ("=1", "", "write section.key=value"),
        ("data.path=x", "data.path", "data must be a list of tables"),
        ("group.min=9", "group.min", r"batch.group_size \(8\) is below group.min \(9\)"),
    ],
)
def test_what_is_wrong_with_an_override_is_told_of_it_and_not_of_the_file(
    tmp_path: Path, override: str, name: str, message: str
) -> None:
    """The file alone is right, also where a line of it does not fit what was given."""
    path = write(tmp_path, SET)
    load_config(path)
    with pytest.raises(ConfigError, match=f"^config error in --set ?{name}: {message}"):
        load_config(path, [override])


def test_a_key_with_dots_can_be_given_in_quotes(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SET), ['kafka.librdkafka."security.protocol"=SSL'])
    assert config.kafka.librdkafka == {"security.protocol": "SSL"}


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="model.safetensors is no text in UTF-8"):
        load_config(path)
