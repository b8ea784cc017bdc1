"""Kafka's jars: fetched once by jgo into the cache, and checked against `jars.sha256` whenever a broker starts.

`python -m infra.broker.jars` prints the checksums of what Maven resolves now: review them, then check them in.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from infra.broker.errors import BrokerError

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Resolved apart from Kafka: together, log4j's bill of materials lowers kafka-clients to 3.9."""
PINNED = Path(__file__).with_name("jars.sha256")


def cache_folder() -> Path:
    """Where downloads are kept: $GYRE_CACHE, else ~/.cache/gyre."""
    return Path(os.environ.get("GYRE_CACHE") or Path.home() / ".cache" / "gyre")


def pinned_sums(file: Path = PINNED) -> dict[str, str]:
    """Name of a jar -> its sha256, as checked in."""
    pairs = (line.split() for line in file.read_text().splitlines() if line.strip())
    return {name: digest for digest, name in pairs}


def kafka_jars(cache: Path | None = None) -> list[Path]:
    """The jars of the class path, each verified. Raises BrokerError naming the jar that is missing or differs."""
    folder = (cache or cache_folder()) / KAFKA.replace(":", "-")
    sums = pinned_sums()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if any(not (folder / name).exists() for name in sums):
            _download(folder, sums)
        return verified(folder, sums)


def verified(folder: Path, sums: Mapping[str, str]) -> list[Path]:
    """The jars in `folder` that `sums` names, in order of name."""
    for name, expected in sorted(sums.items()):
        jar = folder / name
        if not jar.exists():
            raise BrokerError(f"the jar {name} is missing in {folder}: remove that folder, it is then fetched again.")
        if _sha256(jar) != expected:
            raise BrokerError(
                f"the jar {name} in {folder} is not the one that was pinned (sha256 differs from {PINNED.name}): "
                "remove that folder, it is then fetched again. Should it differ again, do not run it."
            )
    return [folder / name for name in sorted(sums)]


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _download(folder: Path, sums: Mapping[str, str]) -> None:
    for jar in resolve(folder / "jgo"):
        if jar.name in sums:
            part = folder / f"{jar.name}.part"
            shutil.copyfile(jar, part)
            part.rename(folder / jar.name)
    shutil.rmtree(folder / "jgo", ignore_errors=True)


def resolve(staging: Path) -> list[Path]:
    """Have jgo resolve and fetch Kafka and its logging into `staging`. Raises BrokerError where Maven cannot be reached."""
    from jgo.env import EnvironmentBuilder
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=staging / "repository", timeout=30)
    builder = EnvironmentBuilder(context, cache_dir=staging / "environments")
    try:
        kafka, logging = (_jars_of(Path(builder.from_endpoint(what).path)) for what in (KAFKA, LOGGING))
    except Exception as error:
        raise BrokerError(
            f"cannot fetch Apache Kafka ({KAFKA}) from Maven Central: {error!s:.300}. "
            f"Check the network, or copy the jars that {PINNED} names into {staging.parent}."
        ) from error
    return kafka + [jar for jar in logging if jar.name.startswith("log4j-slf4j-impl")]


def _jars_of(environment: Path) -> list[Path]:
    return sorted(jar for part in ("jars", "modules") for jar in (environment / part).glob("*.jar"))


def main() -> None:
    """Print the checksums of what is resolved now."""
    import tempfile

    with tempfile.TemporaryDirectory() as staging:
        for jar in sorted(resolve(Path(staging)), key=lambda jar: jar.name):
            print(f"{_sha256(jar)}  {jar.name}")


if __name__ == "__main__":
    main()
