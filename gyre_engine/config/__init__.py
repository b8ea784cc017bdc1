"""The config of an experiment: `schema` says what there is, `load` reads TOML, `build`, `limits` and `problems` name what is wrong."""

from gyre_engine.config.limits import SANDBOX
from gyre_engine.config.load import config_from_json, config_hash, load_config, masked_url, read_source, to_json, with_overrides
from gyre_engine.config.problems import ConfigError, Keys, Problem, Source
from gyre_engine.config.schema import Config, DataSourceConfig, NamedModelConfig

__all__ = [
    "SANDBOX",
    "Config",
    "ConfigError",
    "DataSourceConfig",
    "Keys",
    "NamedModelConfig",
    "Problem",
    "Source",
    "config_from_json",
    "config_hash",
    "load_config",
    "masked_url",
    "read_source",
    "to_json",
    "with_overrides",
]
