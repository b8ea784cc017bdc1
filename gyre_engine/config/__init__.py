"""The config of an experiment: `schema` says what there is, `load` reads TOML and names what is wrong."""

from gyre_engine.config.load import ConfigError, config_from_json, config_hash, load_config, masked_url, to_json, with_overrides
from gyre_engine.config.schema import Config, DataSourceConfig

__all__ = [
    "Config",
    "ConfigError",
    "DataSourceConfig",
    "config_from_json",
    "config_hash",
    "load_config",
    "masked_url",
    "to_json",
    "with_overrides",
]
