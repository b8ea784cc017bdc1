"""The verbs half of `bench_transfer`, run inside the Soft-RoCE VM: reads of one process from another against perftest's ib_read_bw.

Arguments: bytes, pairs. Both move the same bytes in messages of 8 MiB over rxe0; the read verifies each chunk, perftest nothing. The
last line is one JSON object.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import numpy as np

from gyre_engine.transfer import Descriptor, Region
from gyre_engine.transfer.digests import chunk_digests
from gyre_engine.transfer.verbs import VerbsTransfer

MESSAGE = 8 << 20

WRITER = """
import sys
import numpy as np
from gyre_engine.transfer import Region
from gyre_engine.transfer.verbs import VerbsTransfer
transfer = VerbsTransfer()
data = np.arange(int(sys.argv[1]) // 8, dtype=np.uint64)
print(transfer.register(Region.of_array(data)).to_bytes().hex(), flush=True)
sys.stdin.read()
"""


def perftest(nbytes: int) -> float:
    """MB (10^6) a second that ib_read_bw averages over as many messages as `nbytes` takes.

    On a busy machine it may not find out how fast its clock ticks, and says 0 then: that is no measurement.
    """
    for _ in range(5):
        if rate := _perftest(nbytes):
            return rate
    raise RuntimeError("ib_read_bw could not measure in five tries: it says 0 MB/s")


def _perftest(nbytes: int) -> float:
    command = ["ib_read_bw", "-d", "rxe0", "-F", "-s", str(MESSAGE), "-n", str(nbytes // MESSAGE)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        # It says nothing into a pipe before its end, and a client asks once only.
        while (client := subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, check=False)).returncode:
            assert server.poll() is None, client.stderr
            time.sleep(0.1)
    row = next(line for line in client.stdout.splitlines() if line.split()[:1] == [str(MESSAGE)])
    return float(row.split()[3]) * 2**20 / 1e6  # its MB are MiB


def verbs(reader: VerbsTransfer, source: Descriptor, target: np.ndarray) -> float:
    """MB (10^6) a second of one verified read."""
    since = time.perf_counter()
    reader.read(source, Region.of_array(target), timeout=300)
    return source.nbytes / (time.perf_counter() - since) / 1e6


def hashing(target: np.ndarray) -> float:
    """MB (10^6) a second that one thread hashes, in pieces that one thread is taken for."""
    view, piece = Region.of_array(target).view(), 8 << 20
    since = time.perf_counter()
    for start in range(0, len(view), piece):
        chunk_digests(view[start : start + piece], 1 << 20)
    return len(view) / (time.perf_counter() - since) / 1e6


def main() -> None:
    nbytes, pairs = int(sys.argv[1]), int(sys.argv[2])
    reader, target = VerbsTransfer(), np.zeros(nbytes // 8, dtype=np.uint64)
    command = [sys.executable, "-c", WRITER, str(nbytes)]
    rates = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        source = Descriptor.from_bytes(bytes.fromhex(writer.stdout.readline().decode()))
        for way in (lambda: verbs(reader, source, target), lambda: perftest(nbytes)):
            way()  # once before it counts: the first read also has the target's pages made
        for number in range(pairs):
            if number % 2:
                rates.append({"perftest": perftest(nbytes), "verbs": verbs(reader, source, target)})
            else:
                rates.append({"verbs": verbs(reader, source, target), "perftest": perftest(nbytes)})
            print("MB/s", {name: round(rate, 1) for name, rate in rates[-1].items()}, flush=True)
        assert np.array_equal(target, np.arange(nbytes // 8, dtype=np.uint64))
        writer.kill()
    reader.close()
    medians = {f"{name}_mb_s": round(statistics.median(r[name] for r in rates), 1) for name in ("verbs", "perftest")}
    ratio = round(statistics.median(r["verbs"] / r["perftest"] for r in rates), 3)
    print(json.dumps({"verbs_to_perftest": ratio, **medians, "verbs_hash_mb_s": round(hashing(target))}))


if __name__ == "__main__":
    main()
