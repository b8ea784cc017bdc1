"""The Transfer port: what every implementation must do. Peers are processes of their own where they die.

The verbs leg needs an RDMA card: `test_transfer_verbs_vm.py` runs this file in a VM that has one (Soft-RoCE).
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Progress, Region, TransferError, WrongKey
from gyre_engine.transfer.kinds import open_transfer, why_not

CHUNK = 4096
LARGE = int(os.environ.get("GYRE_LARGE_TRANSFER", "3000000000"))


@pytest.fixture(params=["tcp", pytest.param("verbs", marks=pytest.mark.skipif(bool(why_not("verbs")), reason=why_not("verbs")))])
def kind(request):
    return request.param


@pytest.fixture
def transfer_of(kind):
    """A factory of transfers of one kind; all are closed afterwards."""
    made = []

    def make(**options):
        made.append(open_transfer(kind, **{"chunk": CHUNK, **options}))
        return made[-1]

    yield make
    for transfer in made:
        transfer.close()


def noise(nbytes, seed=0):
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8).copy()


@pytest.mark.parametrize("nbytes", [0, 1, CHUNK - 1, CHUNK, 10 * CHUNK + 17])
def test_a_reader_sees_what_was_registered(transfer_of, nbytes):
    writer, reader = transfer_of(), transfer_of()
    source, target = noise(nbytes), np.zeros(nbytes, dtype=np.uint8)
    fields = msgpack.unpackb(msgpack.packb(writer.register(Region.of_array(source)).to_fields()))
    reader.read(Descriptor.from_fields(fields), Region.of_array(target), timeout=20)
    assert np.array_equal(source, target)


@pytest.mark.parametrize("chunk", [1 << 20, 3_000_000, 9 << 20])
def test_many_runs_of_chunks_arrive_each_in_its_place(transfer_of, chunk):
    writer, reader = transfer_of(chunk=chunk), transfer_of()
    source, target = noise(45_000_001), np.zeros(45_000_001, dtype=np.uint8)
    reader.read(writer.register(Region.of_array(source)), Region.of_array(target), timeout=60)
    assert np.array_equal(source, target)


@pytest.mark.slow
def test_three_gigabytes_are_read(transfer_of):
    """More than a signed or an unsigned 32-bit length holds, as far as GYRE_LARGE_TRANSFER does not say less."""
    writer, reader = transfer_of(chunk=1 << 20), transfer_of()
    source, target = np.arange(LARGE // 8, dtype=np.uint64), np.zeros(LARGE // 8, dtype=np.uint64)
    reader.read(writer.register(Region.of_array(source)), Region.of_array(target), timeout=250)
    assert np.array_equal(source, target)


def test_memory_that_changes_is_read_as_it_is_now(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    source, target = np.zeros(3 * CHUNK, dtype=np.float32), np.zeros(3 * CHUNK, dtype=np.float32)
    descriptor = writer.register(Region.of_array(source), changes=True)
    progress = Progress()
    for value in (1.5, -2.0):
        source[:] = value
        reader.read(descriptor, Region.of_array(target), timeout=20, progress=progress)
        assert np.array_equal(source, target)


def a_bit(source, chunk):
    source[chunk + 1] ^= 1


def a_bit_of_the_last_byte(source, chunk):
    source[-1] ^= 0x80


def a_page_of_zeros(source, chunk):
    source[chunk : chunk + 1024] = 0


def a_word_in_the_place_of_another(source, chunk):
    source[:8], source[8:16] = source[8:16].copy(), source[:8].copy()


def a_chunk_in_the_place_of_another(source, chunk):
    source[:chunk], source[chunk : 2 * chunk] = source[chunk : 2 * chunk].copy(), source[:chunk].copy()


DAMAGES = [a_bit, a_bit_of_the_last_byte, a_page_of_zeros, a_word_in_the_place_of_another, a_chunk_in_the_place_of_another]


@pytest.mark.parametrize("chunk", [CHUNK, 9 << 20])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_bytes_that_changed_after_registration_raise_integrity_error(transfer_of, damage, chunk):
    """What is verified beside the reading (large chunks over verbs) is found as well."""
    writer, reader = transfer_of(chunk=chunk), transfer_of()
    source = noise(2 * chunk + 17)
    descriptor = writer.register(Region.of_array(source))
    damage(source, chunk)
    with pytest.raises(IntegrityError, match="not what was registered"):
        reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=20)


def test_a_descriptor_made_for_other_bytes_raises_integrity_error(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    one, two = (writer.register(Region.of_array(noise(CHUNK, seed))) for seed in (1, 2))
    with pytest.raises(IntegrityError, match="other bytes than its descriptor"):
        reader.read(replace(one, digest=two.digest), Region.of_array(noise(CHUNK)), timeout=20)


def test_a_wrong_key_reads_nothing(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    descriptor = writer.register(Region.of_array(noise(2 * CHUNK)))
    target = np.zeros(2 * CHUNK, dtype=np.uint8)
    for wrong in (replace(descriptor, capability=bytes(32)), replace(descriptor, key_id=bytes(16))):
        with pytest.raises(WrongKey):
            reader.read(wrong, Region.of_array(target), timeout=20)
    assert not target.any()


def test_a_shared_secret_keeps_capabilities_out_of_descriptors(transfer_of):
    writer, friend, stranger = transfer_of(secret=b"run"), transfer_of(secret=b"run"), transfer_of(secret=b"other")
    source, target = noise(CHUNK), np.zeros(CHUNK, dtype=np.uint8)
    descriptor = writer.register(Region.of_array(source))
    assert descriptor.capability == b""
    with pytest.raises(WrongKey):
        stranger.read(descriptor, Region.of_array(target), timeout=20)
    friend.read(descriptor, Region.of_array(target), timeout=20)
    assert np.array_equal(source, target)


def test_an_ended_registration_or_lease_reads_nothing(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    source = noise(CHUNK)
    ended, leased = writer.register(Region.of_array(source)), writer.register(Region.of_array(source), lease=0.0)
    writer.unregister(ended, timeout=5)
    for descriptor in (ended, leased):
        with pytest.raises(WrongKey):
            reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=20)


def test_a_lease_that_ends_during_a_read_cuts_it_off(transfer_of):
    """Nobody reads memory that its owner may use again."""
    writer, reader = transfer_of(), transfer_of()
    source = noise(NBYTES)
    descriptor = writer.register(Region.of_array(source), lease=1.0)
    ends = time.monotonic() + 1.0
    progress = Progress(descriptor.digest, descriptor.chunk, Doing(lambda: time.sleep(max(0.0, ends - time.monotonic()))))
    with pytest.raises((WrongKey, PeerLost)):
        reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=60, progress=progress)


def test_a_target_of_another_size_is_refused(transfer_of):
    writer = transfer_of()
    descriptor = writer.register(Region.of_array(noise(CHUNK)))
    with pytest.raises(ValueError, match="they must be equal"):
        writer.read(descriptor, Region.of_array(noise(CHUNK - 1)), timeout=20)


def test_a_descriptor_of_another_hash_is_refused_by_its_name(transfer_of):
    """Also one of memory that changes, which has no digest, and one of before there was a choice."""
    fields = transfer_of().register(Region.of_array(noise(CHUNK))).to_fields()
    for other in ({"algorithm": "sha256", "digest": bytes(32)}, {"algorithm": "sha256", "digest": b""}):
        with pytest.raises(WrongKey, match="algorithm 'sha256': this Gyre verifies with xxh64 alone; run the same version"):
            Descriptor.from_fields({**fields, **other})
    del fields["algorithm"]
    with pytest.raises(WrongKey, match="lacks algorithm"):
        Descriptor.from_fields(fields)


def test_a_descriptor_that_is_cut_off_or_mangled_raises_with_a_clear_text(transfer_of):
    """Cut anywhere, with a field of another length or type, or a byte of another value (but for where the owner serves)."""
    writer, reader = transfer_of(secret=b"run"), transfer_of(secret=b"run")
    descriptor = writer.register(Region.of_array(noise(3 * CHUNK)))
    data, into = descriptor.to_bytes(), Region.of_array(np.zeros(3 * CHUNK, dtype=np.uint8))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="descriptor"):
            Descriptor.from_bytes(data[:length])
    bad = {"key_id": bytes(15), "capability": bytes(31), "digest": b"x", "chunk": 0, "nbytes": -1, "port": "1", "host": ""}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"cannot have {name}"):
            Descriptor.from_fields({**descriptor.to_fields(), name: value})
    for at in range(len(data)):
        mangled = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        with pytest.raises((WrongKey, IntegrityError, ValueError)):
            found = Descriptor.from_bytes(mangled)
            if (found.host, found.port) != (descriptor.host, descriptor.port):
                raise ValueError("serves elsewhere")
            reader.read(found, into, timeout=20)


PEER = """
import os, signal, sys
import numpy as np
from gyre_engine.transfer import Descriptor, Progress, Region
from gyre_engine.transfer.kinds import open_transfer

what, kind, nbytes, given = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
transfer = open_transfer(kind, chunk=4096)
if what == "writer":
    data = np.arange(nbytes, dtype=np.uint8)
    print(transfer.register(Region.of_array(data)).to_bytes().hex(), flush=True)
    sys.stdin.read()

class StopsAtTheFirst(set):
    def add(self, chunk):
        print("reads", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

source = Descriptor.from_bytes(bytes.fromhex(given))
progress = Progress(digest=source.digest, chunk=source.chunk, done=StopsAtTheFirst())
transfer.read(source, Region.of_array(np.zeros(nbytes, dtype=np.uint8)), timeout=60, progress=progress)
"""


@contextmanager
def peer(what, kind, nbytes, given="-"):
    """A writer of the bytes 0..255 0..255 or a reader of `given`, in another process; its first line."""
    command = [sys.executable, "-c", PEER, what, kind, str(nbytes), given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


NBYTES = 40 << 20
"""More than the buffers of sockets hold, and than a card is asked for at once."""


def test_a_writer_that_is_dead_raises_peer_lost_within_the_timeout(kind, transfer_of):
    reader, target = transfer_of(), np.zeros(1 << 20, dtype=np.uint8)
    with peer("writer", kind, 1 << 20) as (process, line):
        descriptor = Descriptor.from_bytes(bytes.fromhex(line))
        reader.read(descriptor, Region.of_array(target), timeout=60)
        assert np.array_equal(target, np.arange(1 << 20, dtype=np.uint8))
        process.kill()
        process.wait()
        started = time.monotonic()
        with pytest.raises(PeerLost):
            reader.read(descriptor, Region.of_array(target), timeout=5)
        assert time.monotonic() - started < 6


class Doing(set):
    """Chunks that are done; the first does something else too."""

    def __init__(self, first):
        self._first = first

    def add(self, chunk):
        if not self:
            self._first()
        super().add(chunk)


def test_a_writer_that_dies_in_the_middle_raises_peer_lost_and_another_is_read_on_where_it_was(kind, transfer_of):
    """No chunk that was verified is read again: what came over the wire in both reads together is the region, once."""
    reader, target = transfer_of(), np.zeros(NBYTES, dtype=np.uint8)
    with peer("writer", kind, NBYTES) as (process, line):
        descriptor = Descriptor.from_bytes(bytes.fromhex(line))

        def die():
            process.kill()
            process.wait()

        progress = Progress(descriptor.digest, descriptor.chunk, Doing(die))
        with pytest.raises(PeerLost):
            reader.read(descriptor, Region.of_array(target), timeout=60, progress=progress)
    read = progress.received
    assert 0 < read == len(progress.done) * CHUNK < NBYTES
    writer, source = transfer_of(), np.arange(NBYTES, dtype=np.uint8)
    reader.read(writer.register(Region.of_array(source)), Region.of_array(target), timeout=60, progress=progress)
    assert np.array_equal(target, source)
    assert progress.received == NBYTES


def test_other_bytes_are_not_read_on_into_what_was_there(transfer_of):
    writer, reader, target = transfer_of(), transfer_of(), np.zeros(4 * CHUNK, dtype=np.uint8)
    progress = Progress()
    for seed in (1, 2):
        source = noise(4 * CHUNK, seed)
        reader.read(writer.register(Region.of_array(source)), Region.of_array(target), timeout=20, progress=progress)
        assert np.array_equal(target, source)


def test_a_reader_that_dies_leaves_the_writer_free_and_serving(kind, transfer_of):
    """While it is stopped in the middle of its read it holds the region; once it is dead nothing does, and others read."""
    writer, reader = transfer_of(), transfer_of()
    source, target = np.arange(NBYTES, dtype=np.uint8), np.zeros(NBYTES, dtype=np.uint8)
    held, other = (writer.register(Region.of_array(source)) for _ in range(2))
    with peer("reader", kind, NBYTES, held.to_bytes().hex()) as (process, line):
        assert line == "reads"
        os.waitpid(process.pid, os.WUNTRACED)
        with pytest.raises(TimeoutError, match="readers still hold"):
            writer.unregister(held, timeout=0.1)
        process.send_signal(signal.SIGKILL)
        writer.unregister(held, timeout=20)
    with pytest.raises(WrongKey):
        reader.read(held, Region.of_array(target), timeout=20)
    reader.read(other, Region.of_array(target), timeout=60)
    assert np.array_equal(target, source)


def test_a_transfer_that_is_closed_leaves_its_readers_with_an_error_at_once(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    source = noise(NBYTES)
    descriptor = writer.register(Region.of_array(source))
    progress = Progress(descriptor.digest, descriptor.chunk, Doing(writer.close))
    started = time.monotonic()
    with pytest.raises(TransferError):
        reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=60, progress=progress)
    assert time.monotonic() - started < 30
