"""What processes are told: whole, and without secrets where others could read them."""

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

from gyre_engine.config import Config, to_json, with_overrides
from infra.stack.launch import CellPlace, Launch, keep_secrets
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.stack.wiring import trainer


def launch(config: Config) -> Launch:
    return Launch(
        run="r", config=to_json(config), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4, replication=1,
        proxy_url="http://127.0.0.1:2", cells=(CellPlace("cell-0", 0, "http://127.0.0.1:3"),), clickhouse_url="",
    )  # fmt: skip


def test_a_launch_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    made = launch(with_overrides(Config(), ["run.steps=7"]))
    made.save(folder)
    assert Launch.load(folder) == made
    assert Launch.load(folder).settings.run.steps == 7


def test_ids_are_hashed_with_the_config_as_it_was_pinned_whatever_keys_came_since(tmp_path: Path) -> None:
    """The text of a run that began before `model.aliases` was a key."""
    config = json.loads(to_json(Config()))
    del config["model"]["aliases"]
    pinned = json.dumps(config, sort_keys=True)
    made = replace(launch(Config()), config=pinned)
    made.save(StackFolder(tmp_path))
    assert to_json(Launch.load(StackFolder(tmp_path)).settings) != pinned
    told = trainer(Launch.load(StackFolder(tmp_path)), StackFolder(tmp_path), "cell-0", "me").packing.config_hash
    assert told == hashlib.blake2b(pinned.encode(), digest_size=16).hexdigest()


def test_passwords_reach_every_client_and_stand_only_in_a_private_file(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    secret = {"sasl.password": "hunter2", "security.protocol": "SASL_SSL"}
    config = with_overrides(Config(), ["kafka.librdkafka={'sasl.password' = 'hunter2', 'security.protocol' = 'SASL_SSL'}"])
    keep_secrets(folder, config)
    launch(config).save(folder)
    assert dict(Launch.load(folder).kafka(folder).extra) == secret
    assert "hunter2" not in folder.launch.read_text()
    assert stat.S_IMODE((tmp_path / "private.json").stat().st_mode) == 0o600


def test_the_stacks_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path / "new")
    assert folder.secret() == folder.secret()
    assert stat.S_IMODE((tmp_path / "new" / "secret").stat().st_mode) == 0o600


def test_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
