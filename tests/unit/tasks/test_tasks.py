"""Task folders: what is read, and errors that name the folder and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre_engine.tasks import TaskError, prepare, read_task, require_local
from gyre_engine.tasks.dockerfile import Copy, read_dockerfile


def make(folder: Path, **files: str) -> Path:
    defaults = {"task.toml": "", "instruction.md": "Do it.\n", "tests/test.sh": "#!/bin/sh\n"}
    for name, text in {**defaults, **{k.replace("__", "/").replace("_", "."): v for k, v in files.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_whole_task_is_read(tmp_path: Path) -> None:
    toml = (
        'version = "1.0"\n[metadata]\ncategory = "c"\ndifficulty = "hard"\n[agent]\ntimeout_sec = 90\n[verifier]\ntimeout_sec = 30.5\n'
        '[environment]\ncpus = 2\nmemory = "2G"\nstorage = "512M"\n[environment.env]\nA = "1"\n[verifier.env]\nB = "2"\n'
    )
    task = read_task(make(tmp_path / "t", task_toml=toml, environment__Dockerfile="FROM a\nENV X=y\nWORKDIR /work\n"))
    assert (task.name, task.agent_timeout_s, task.verifier_timeout_s, task.cpus) == ("t", 90.0, 30.5, 2.0)
    assert (task.memory_mb, task.storage_mb, task.category, task.difficulty) == (2048, 512, "c", "hard")
    assert task.env == (("X", "y"), ("A", "1")) and task.verifier_env == (("B", "2"),)
    assert task.image.workdir == "/work" and task.slices == ("work",) and task.solution is None


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"task_toml": "[agent\n"}, r"task.toml is not TOML"),
        ({"task_toml": "agent = 3\n"}, r"\[agent\] must be a table"),
        ({"task_toml": '[agent]\ntimeout_sec = "90"\n'}, r"timeout_sec must be a number"),
        ({"task_toml": "[agent]\ntimeout_sec = -1\n"}, r"timeout_sec must be a number of at least 0"),
        ({"task_toml": '[environment]\nmemory = "much"\n'}, r'memory must be a size such as "2G"'),
        ({"task_toml": '[[steps]]\nname = "a"\n'}, r"several steps are not supported"),
        ({"instruction_md": "  \n"}, r"instruction.md is empty"),
        ({"environment__Dockerfile": "FROM a\nENV\n"}, r"cannot read the line 'ENV'"),
    ],
)
def test_errors_name_the_folder_and_what_is_wrong(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(TaskError, match=says) as error:
        read_task(make(tmp_path / "mytask", **files))
    assert "mytask" in str(error.value)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "tests/test.sh"])
def test_a_missing_part_is_named(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "t")
    (folder / name).unlink()
    with pytest.raises(TaskError, match=f"has no {name}"):
        read_task(folder)


def test_a_dockerfile_is_followed_as_far_as_it_goes() -> None:
    text = """# syntax
ARG BASE=python
FROM ${BASE}:3 AS one
WORKDIR /elsewhere
FROM debian
ENV HOME_DIR=/srv A="b c"
ENV OLD style value
WORKDIR /app
WORKDIR sub
COPY --chown=1:1 a.txt b.txt ./
COPY ["c d.txt", "/data/c.txt"]
COPY src $HOME_DIR/src
RUN mkdir -p /app/out cache
RUN apt-get update && \\
    apt-get install -y gcc
COPY --from=one /x /y
USER nobody
CMD ["sh"]
"""
    image = read_dockerfile(text)
    assert (image.base, image.workdir) == ("debian", "/app/sub")
    assert dict(image.env) == {"HOME_DIR": "/srv", "A": "b c", "OLD": "style value"}
    assert image.copies == (
        Copy(("a.txt", "b.txt"), "/app/sub", True),
        Copy(("c d.txt",), "/data/c.txt", False),
        Copy(("src",), "/srv/src", False),
    )
    assert image.folders == ("/app/out", "/app/sub/cache")
    assert [line.split()[0] for line in image.missing] == ["RUN", "COPY"] and "gcc" in image.missing[0]


def test_what_needs_docker_is_said(tmp_path: Path) -> None:
    task = read_task(make(tmp_path / "t", environment__Dockerfile="FROM a\nRUN pip install numpy\nWORKDIR /usr/src/app\n"))
    with pytest.raises(TaskError, match=r"needs docker for `RUN pip install numpy`, WORKDIR /usr/src/app.*install on the host"):
        require_local(task)
    image = read_task(make(tmp_path / "u", task_toml='[environment]\ndocker_image = "x/y:1"\n'))
    with pytest.raises(TaskError, match="image x/y:1"):
        require_local(image)


def test_a_workspace_is_what_the_copy_lines_say(tmp_path: Path) -> None:
    dockerfile = "FROM a\nWORKDIR /app\nCOPY *.txt ./\nCOPY lib /data/lib\nCOPY one.txt /app/renamed\n"
    folder = make(tmp_path / "t", environment__Dockerfile=dockerfile, environment__one_txt="1", environment__lib__two_py="2")
    root = tmp_path / "root"
    prepare(read_task(folder), root)
    assert {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()} == {
        "app/one.txt": "1",
        "app/renamed": "1",
        "data/lib/two.py": "2",
    }


@pytest.mark.parametrize("source", ["missing.txt", "../task.toml"])
def test_copying_what_is_not_in_the_environment_is_refused(tmp_path: Path, source: str) -> None:
    task = read_task(make(tmp_path / "t", environment__Dockerfile=f"FROM a\nWORKDIR /app\nCOPY {source} /app/\n"))
    with pytest.raises(TaskError, match=r"is not in .*environment"):
        prepare(task, tmp_path / "root")
