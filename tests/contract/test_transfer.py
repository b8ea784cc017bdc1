"""The Transfer port: what every implementation must do. Writers are processes of their own where they die."""

import subprocess
import sys
import time
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region, WrongKey
from gyre_engine.transfer.tcp import TcpTransfer

CHUNK = 4096


@pytest.fixture(params=["tcp"])
def transfer_of(request):
    """A factory of transfers of one kind; all are closed afterwards."""
    made = []

    def make(**options):
        made.append({"tcp": TcpTransfer}[request.param](chunk=CHUNK, **options))
        return made[-1]

    yield make
    for transfer in made:
        transfer.close()


def noise(nbytes, seed=0):
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8).copy()


@pytest.mark.parametrize("nbytes", [1, CHUNK - 1, CHUNK, 10 * CHUNK + 17])
def test_a_reader_sees_what_was_registered(transfer_of, nbytes):
    writer, reader = transfer_of(), transfer_of()
    source, target = noise(nbytes), np.zeros(nbytes, dtype=np.uint8)
    fields = msgpack.unpackb(msgpack.packb(writer.register(Region.of_array(source)).to_fields()))
    reader.read(Descriptor.from_fields(fields), Region.of_array(target), timeout=5)
    assert np.array_equal(source, target)


def test_memory_that_changes_is_read_as_it_is_now(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    source, target = np.zeros(3 * CHUNK, dtype=np.float32), np.zeros(3 * CHUNK, dtype=np.float32)
    descriptor = writer.register(Region.of_array(source), changes=True)
    for value in (1.5, -2.0):
        source[:] = value
        reader.read(descriptor, Region.of_array(target), timeout=5)
        assert np.array_equal(source, target)


@pytest.mark.parametrize("where", [0, 5 * CHUNK + 1])
def test_bytes_that_changed_after_registration_raise_integrity_error(transfer_of, where):
    writer, reader = transfer_of(), transfer_of()
    source = noise(6 * CHUNK)
    descriptor = writer.register(Region.of_array(source))
    source[where] ^= 1
    with pytest.raises(IntegrityError, match="not what was registered"):
        reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=5)


def test_a_descriptor_made_for_other_bytes_raises_integrity_error(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    one, two = (writer.register(Region.of_array(noise(CHUNK, seed))) for seed in (1, 2))
    with pytest.raises(IntegrityError, match="other bytes than its descriptor"):
        reader.read(replace(one, digest=two.digest), Region.of_array(noise(CHUNK)), timeout=5)


def test_a_wrong_key_reads_nothing(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    descriptor = writer.register(Region.of_array(noise(2 * CHUNK)))
    target = np.zeros(2 * CHUNK, dtype=np.uint8)
    for wrong in (replace(descriptor, capability=bytes(32)), replace(descriptor, key_id=bytes(16))):
        with pytest.raises(WrongKey):
            reader.read(wrong, Region.of_array(target), timeout=5)
    assert not target.any()


def test_a_shared_secret_keeps_capabilities_out_of_descriptors(transfer_of):
    writer, friend, stranger = transfer_of(secret=b"run"), transfer_of(secret=b"run"), transfer_of(secret=b"other")
    source, target = noise(CHUNK), np.zeros(CHUNK, dtype=np.uint8)
    descriptor = writer.register(Region.of_array(source))
    assert descriptor.capability == b""
    with pytest.raises(WrongKey):
        stranger.read(descriptor, Region.of_array(target), timeout=5)
    friend.read(descriptor, Region.of_array(target), timeout=5)
    assert np.array_equal(source, target)


def test_an_ended_registration_or_lease_reads_nothing(transfer_of):
    writer, reader = transfer_of(), transfer_of()
    source = noise(CHUNK)
    ended, leased = writer.register(Region.of_array(source)), writer.register(Region.of_array(source), lease=0.0)
    writer.unregister(ended, timeout=5)
    for descriptor in (ended, leased):
        with pytest.raises(WrongKey):
            reader.read(descriptor, Region.of_array(np.zeros_like(source)), timeout=5)


def test_a_target_of_another_size_is_refused(transfer_of):
    writer = transfer_of()
    descriptor = writer.register(Region.of_array(noise(CHUNK)))
    with pytest.raises(ValueError, match="they must be equal"):
        writer.read(descriptor, Region.of_array(noise(CHUNK - 1)), timeout=5)


WRITER = """
import sys
import numpy as np
from gyre_engine.transfer import Region
from gyre_engine.transfer.tcp import TcpTransfer
transfer = TcpTransfer()
descriptor = transfer.register(Region.of_array(np.arange(1 << 20, dtype=np.uint8)))
print(descriptor.port, descriptor.key_id.hex(), descriptor.capability.hex(), descriptor.digest.hex(),
      descriptor.chunk, descriptor.nbytes, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process():
    """A writer in another process, and the descriptor of its MiB of bytes 0..255."""
    with subprocess.Popen([sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port, key, capability, digest, chunk, nbytes = process.stdout.readline().split()
        unhex = [bytes.fromhex(text.decode()) for text in (key, capability, digest)]
        yield process, Descriptor("127.0.0.1", int(port), unhex[0], unhex[1], int(nbytes), int(chunk), unhex[2])
        process.kill()


def test_a_writer_that_dies_raises_peer_lost_within_the_timeout(transfer_of, other_process):
    process, descriptor = other_process
    reader, target = transfer_of(), np.zeros(1 << 20, dtype=np.uint8)
    reader.read(descriptor, Region.of_array(target), timeout=20)
    assert np.array_equal(target, np.arange(1 << 20, dtype=np.uint8))
    process.kill()
    process.wait()
    started = time.monotonic()
    with pytest.raises(PeerLost):
        reader.read(descriptor, Region.of_array(target), timeout=2)
    assert time.monotonic() - started < 3
