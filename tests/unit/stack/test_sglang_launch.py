"""How an SGLang server whose KV moves is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gyre_engine
from gyre_engine.config import Config, to_json
from infra.sglang.launch import ON_CPU, RAW_LOGPROBS, MovingKv, no_gpu, sglang_on_gpu
from infra.stack.cells import cell_processes
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    return {
        word: argv[at + 1] for at, word in enumerate(argv[:-1]) if word.startswith("--") and not argv[at + 1].startswith("--")
    }


def test_a_cell_gets_a_server_with_our_backend_and_the_key_that_cells_share(tmp_path: Path) -> None:
    config = replace(Config(), cells=replace(Config().cells, engine="sglang", sglang_python="/gpu/python", engine_kv="hicache"))
    place = CellPlace("cell-1", 1, "http://10.0.0.5:7001")
    launch = Launch(
        run="r", config=to_json(config), bootstrap_servers="", prefix="gyre", partitions=1, replication=1, proxy_url="",
        cells=(place,),
        clickhouse_url="", host="10.0.0.5",
    )  # fmt: skip
    folder = StackFolder(tmp_path)
    engine = cell_processes(launch, folder, place)[0]
    argv = engine.argv[engine.argv.index("/gpu/python") :]
    assert argv[1:3] == ("-m", "gyre_engine.sampling.hicache.server")
    assert "--enable-hierarchical-cache" in argv and "--device" not in argv
    given = flags(argv)
    assert (given["--hicache-storage-backend"], given["--port"]) == ("dynamic", "7001")
    extra = json.loads(given["--hicache-storage-backend-extra-config"])
    assert (extra["module_path"], extra["class_name"]) == ("gyre_engine.sampling.hicache.storage", "GyreHiCache")
    assert (extra["capacity"], extra["host"], extra["version"]) == (4096 << 20, "10.0.0.5", given["--weight-version"])
    assert Path(extra["secret_file"]).read_bytes().strip() == folder.cell_key()
    assert Path(extra["sockets"]).is_relative_to(folder.scratch / "r" / "cell-1")


def test_sglangs_python_finds_our_package_and_nothing_else_of_our_environment(tmp_path: Path) -> None:
    kv = MovingKv(str(tmp_path / "kv"), 1 << 20)
    own = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", RAW_LOGPROBS: "1", "CUDA_VISIBLE_DEVICES": "3"}
    for _ in range(2):  # an engine that is started again
        launch = sglang_on_gpu("python", "m", "0", host="h", port=1, environment=own, kv_capacity=64, max_batch=2, kv=kv)
    assert {name: launch.env[name] for name in own if name in launch.env} == {
        "PYTHONPATH": str(tmp_path / "kv" / "packages"), "CUDA_VISIBLE_DEVICES": "3",
    }  # fmt: skip
    [found] = Path(launch.env["PYTHONPATH"]).iterdir()
    assert (found.name, found.resolve()) == ("gyre_engine", Path(gyre_engine.__path__[0]).resolve())


def test_weights_leave_room_for_the_kv_that_a_server_is_given() -> None:
    """SGLang on a CPU gives KV what is free after the weights, less (1 - fraction) of what was free before. Seen with SmolLM2-135M
    in fp32 on a machine with 23 GB, a second cell starting beside it: 12.4 % less was free then; 16,384 tokens of KV are 0.75 GB."""
    before, after, kv = 14.0, 14.0 * (1 - 0.124), 16384 * 30 * 2 * 3 * 64 * 4 / 1e9
    assert after - before * (1 - float(ON_CPU["--mem-fraction-static"])) > kv


def test_a_server_whose_kv_does_not_move_is_plain_sglang() -> None:
    launch = sglang_on_gpu("python", "m", "0", host="h", port=1, environment={}, kv_capacity=64, max_batch=2)
    assert launch.argv[1:3] == ("-m", "sglang.launch_server")
    assert "hicache" not in " ".join(launch.argv)
    assert "PYTHONPATH" not in launch.env


def test_a_missing_gpu_is_named_or_there_is_one() -> None:
    """Against what the kernel shows of NVIDIA's driver."""
    assert bool(no_gpu()) or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
