"""How fast reads through the Transfer port are. The last line is one JSON object. SIZE=bytes (default 1 GB), PAIRS=n (default 7).

tcp_to_socket       tcp against a plain-socket copy loop, between two processes on loopback: both fill the same target and check
                    the same hash a chunk (XXH64); median over pairs that alternate in one run
verbs_to_perftest   verbs, verified, against ib_read_bw with messages of the same size in the same VM; null where there is no VM
tcp_gb_s, socket_gb_s, verbs_mb_s, perftest_mb_s    medians of the rates
verbs_hash_mb_s     what one thread of that VM hashes
copies_a_byte       of payload in this program's memory, both ends together (a socket's two copies in the kernel come on top)
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import xxhash

from gyre_engine.transfer import Descriptor, Region
from gyre_engine.transfer.tcp import TcpTransfer
from infra.rdma.fetch import NotToBeHad
from infra.rdma.vm import run

SIZE = int(os.environ.get("SIZE", "1000000000"))
PAIRS = int(os.environ.get("PAIRS", "7"))
CHUNK = 1 << 20
LIMIT_S = 120.0
VM_SIZE, VM_PAIRS, VM_LIMIT_S = 256 << 20, 9, 900.0

WRITER = """
import socket, sys
import numpy as np
import xxhash
from gyre_engine.transfer import Region
from gyre_engine.transfer.tcp import TcpTransfer

size, chunk = map(int, sys.argv[1:])
data = np.frombuffer(np.random.default_rng(0).bytes(size), dtype=np.uint8)
view = memoryview(data)
transfer = TcpTransfer(chunk=chunk)
plain = socket.create_server(("127.0.0.1", 0))
print(plain.getsockname()[1], transfer.register(Region.of_array(data)).to_bytes().hex(), flush=True)
digests = b"".join(xxhash.xxh64_digest(view[at : at + chunk]) for at in range(0, size, chunk))
while True:
    connection, _ = plain.accept()
    with connection:
        connection.sendall(digests)
        for start in range(0, size, chunk):
            connection.sendall(view[start : start + chunk])
"""


@contextmanager
def writer() -> Iterator[tuple[int, Descriptor]]:
    """Another process with SIZE bytes: the port of its copy loop, and the descriptor of its transfer."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(SIZE), str(CHUNK)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port, descriptor = process.stdout.readline().split()
            yield int(port), Descriptor.from_bytes(bytes.fromhex(descriptor.decode()))
        finally:
            process.kill()


def copy_loop(port: int, into: memoryview) -> None:
    """The plain socket: receive a chunk, hash it, compare, next."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        digests = _exactly(connection, memoryview(bytearray(-(-len(into) // CHUNK) * 8)))
        for index, start in enumerate(range(0, len(into), CHUNK)):
            part = _exactly(connection, into[start : start + CHUNK])
            if xxhash.xxh64_digest(part) != digests[index * 8 : index * 8 + 8]:
                raise ValueError(f"chunk {index} differs")


def _exactly(connection: socket.socket, view: memoryview) -> memoryview:
    filled = 0
    while filled < len(view):
        count = connection.recv_into(view[filled:])
        if not count:
            raise EOFError
        filled += count
    return view


def seconds(work: Callable[[], None], target: np.ndarray) -> float:
    """How long `work` took to fill the target, which is empty before."""
    target[:] = 0
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def tcp() -> dict[str, object]:
    """Pairs of a read and a copy loop, in alternating order."""
    target = np.zeros(SIZE, dtype=np.uint8)
    reader = TcpTransfer(chunk=CHUNK)
    with writer() as (port, descriptor):
        ways: dict[str, Callable[[], None]] = {
            "tcp": lambda: reader.read(descriptor, Region.of_array(target), timeout=LIMIT_S),
            "socket": lambda: copy_loop(port, memoryview(target)),
        }
        for work in ways.values():
            seconds(work, target)
        pairs = []
        for number in range(PAIRS):
            order = sorted(ways, reverse=bool(number % 2))
            pairs.append({name: seconds(ways[name], target) for name in order})
            print("seconds", {name: round(took, 3) for name, took in pairs[-1].items()}, flush=True)
    reader.close()
    rates = {f"{name}_gb_s": round(SIZE / 1e9 / statistics.median(p[name] for p in pairs), 2) for name in ways}
    return {"tcp_to_socket": round(statistics.median(p["socket"] / p["tcp"] for p in pairs), 2), **rates}


def verbs() -> dict[str, object]:
    """What the same bench says inside the VM; null, and why, where there is none or it fails."""
    try:
        ended = run(f"python3 -m tests.bench.transfer_in_vm {VM_SIZE} {VM_PAIRS}", limit_s=VM_LIMIT_S)
    except NotToBeHad as error:
        print(f"verbs was not measured. There is no Soft-RoCE VM here: {error}", flush=True)
        return {"verbs_to_perftest": None}
    lines = ended.output.strip().splitlines()
    print(*(line for line in lines[:-1] if line.startswith("MB/s")), sep="\n", flush=True)
    if ended.rc != 0:
        print(f"verbs was not measured. The VM ended with {ended.rc}: {ended.output[-2000:]}", flush=True)
        return {"verbs_to_perftest": None}
    return dict(json.loads(lines[-1]))


def main() -> None:
    result = {**tcp(), **verbs(), "copies_a_byte": {"tcp": 0, "verbs": 0}}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
