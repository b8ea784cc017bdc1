"""What is particular to TCP: peers that stall, break off or lie, played by plain sockets; what copies and connections a read costs."""

import contextlib
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest
import xxhash

from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region, WrongKey
from gyre_engine.transfer.tcp import TcpTransfer
from gyre_engine.transfer.wire import ASK, HEADER, OK, REFUSED, REQUEST

NBYTES, CHUNK = 1 << 16, 4096
CHUNKS = NBYTES // CHUNK
DIGESTS = xxhash.xxh64_digest(bytes(CHUNK)) * CHUNKS
"""Of NBYTES zeros."""


@pytest.fixture
def transfer():
    transfer = TcpTransfer()
    yield transfer
    transfer.close()


def read_from(transfer, answer, timeout=5.0):
    """Read NBYTES zeros from a peer that answers the first request with `answer`, then holds the connection, or closes it."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play():
            connection, _ = server.accept()
            with connection:
                connection.recv(REQUEST.size)
                connection.sendall(answer[0])
                if answer[1] == "hold":
                    done.wait(10)

        thread = threading.Thread(target=play)
        thread.start()
        digest = xxhash.xxh64_digest(DIGESTS)
        source = Descriptor("127.0.0.1", server.getsockname()[1], bytes(16), bytes(32), NBYTES, CHUNK, digest)
        try:
            transfer.read(source, Region.of_array(np.ones(NBYTES, dtype=np.uint8)), timeout=timeout)
        finally:
            done.set()
            thread.join()


START = OK + HEADER.pack(NBYTES, CHUNK, False)
KNOWN = START + OK + DIGESTS


@pytest.mark.parametrize("answer", [b"", OK, START, START + OK + bytes(100), KNOWN, KNOWN + OK + bytes(4000)])
def test_a_peer_that_stalls_anywhere_raises_peer_lost_at_the_timeout(transfer, answer):
    started = time.monotonic()
    with pytest.raises(PeerLost):
        read_from(transfer, (answer, "hold"), timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 2


@pytest.mark.parametrize("answer", [b"", OK, START + OK + bytes(100), KNOWN + OK + bytes(100)])
def test_a_peer_that_breaks_off_raises_peer_lost_at_once(transfer, answer):
    started = time.monotonic()
    with pytest.raises(PeerLost, match="after|was lost"):
        read_from(transfer, (answer, "close"), timeout=30)
    assert time.monotonic() - started < 10


def test_a_peer_that_serves_another_size_or_other_bytes_is_not_believed(transfer):
    with pytest.raises(IntegrityError, match="another size"):
        read_from(transfer, (OK + HEADER.pack(NBYTES * 2, CHUNK, False), "hold"))
    with pytest.raises(IntegrityError, match="other bytes than its descriptor"):
        read_from(transfer, (START + OK + bytes(len(DIGESTS)), "hold"))
    with pytest.raises(IntegrityError, match="bytes from 4096 on"):
        read_from(transfer, (KNOWN + OK + bytes(CHUNK) + b"\x01" * CHUNK, "hold"))


def test_a_registration_that_ends_during_a_read_is_refused_from_there_on(transfer):
    with pytest.raises(WrongKey, match="lease is over"):
        read_from(transfer, (KNOWN + REFUSED, "hold"))


def test_a_stranger_on_the_port_does_not_stop_the_others(transfer):
    data = np.arange(100, dtype=np.uint8)
    descriptor = transfer.register(Region.of_array(data))
    with socket.create_connection(("127.0.0.1", transfer.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: someone\r\nUser-Agent: of another protocol\r\n\r\n")
        assert stranger.recv(100) == REFUSED
        target = np.zeros_like(data)
        transfer.read(descriptor, Region.of_array(target), timeout=5)
    assert np.array_equal(data, target)


@pytest.mark.parametrize("ask", [(b"c", 0, 3), (b"c", 2, 1), (b"d", 0, 3), (b"c", 2**64 - 1, 1)])
def test_chunks_outside_of_the_region_are_refused(ask):
    with contextlib.closing(TcpTransfer(chunk=CHUNK)) as transfer:
        descriptor = transfer.register(Region.of_array(np.zeros(2 * CHUNK, dtype=np.uint8)))
        with socket.create_connection(("127.0.0.1", transfer.port)) as reader:
            reader.sendall(REQUEST.pack(b"gyT3", descriptor.key_id, descriptor.capability) + ASK.pack(*ask))
            reader.shutdown(socket.SHUT_WR)
            answer = bytearray()
            while part := reader.recv(100):
                answer += part
    assert answer == OK + HEADER.pack(2 * CHUNK, CHUNK, False) + REFUSED


def test_unregister_waits_for_readers_and_names_those_that_stay():
    """A reader in the middle of a chunk that takes no more holds the region, until it goes. One chunk: no socket buffers it."""
    with contextlib.closing(TcpTransfer(chunk=1 << 26)) as transfer:
        descriptor = transfer.register(Region.of_array(np.zeros(1 << 26, dtype=np.uint8)))
        reader = socket.create_connection(("127.0.0.1", transfer.port))
        reader.sendall(REQUEST.pack(b"gyT3", descriptor.key_id, descriptor.capability) + ASK.pack(b"c", 0, 1))
        begun = 0
        while begun < 4096:
            begun += len(reader.recv(4096))
        with reader, pytest.raises(TimeoutError, match="1 readers still hold"):
            transfer.unregister(descriptor, timeout=0.1)
        transfer.unregister(descriptor, timeout=10)


def test_neither_end_holds_a_copy_of_what_is_read(transfer):
    """64 MiB pass with less than 1 MiB of memory beside source and target, both ends in this process."""
    source, target = np.full(1 << 26, 7, dtype=np.uint8), np.zeros(1 << 26, dtype=np.uint8)
    descriptor = transfer.register(Region.of_array(source))
    tracemalloc.start()
    try:
        transfer.read(descriptor, Region.of_array(target), timeout=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(source, target)
    assert peak < 1 << 20


@pytest.mark.parametrize(("nbytes", "streams", "connections"), [(1 << 20, 4, 1), (100 << 20, 4, 4), (100 << 20, 1, 1)])
def test_a_large_read_takes_several_connections_and_a_small_one_one(transfer, monkeypatch, nbytes, streams, connections):
    source = np.zeros(nbytes, dtype=np.uint8)
    descriptor, opened = transfer.register(Region.of_array(source)), []
    create = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: opened.append(a) or create(*a, **k))
    with contextlib.closing(TcpTransfer(streams=streams)) as reader:
        reader.read(descriptor, Region.of_array(source.copy()), timeout=60)
    assert len(opened) == connections


def test_only_contiguous_memory_can_be_a_region():
    with pytest.raises(ValueError, match="contiguous"):
        Region.of_array(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="contiguous"):
        Region.of_array(np.zeros((4, 4)).T[1:])
