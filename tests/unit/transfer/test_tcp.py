"""What is particular to TCP: peers that stall, break off or lie, played by plain sockets."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region
from gyre_engine.transfer.tcp import TcpTransfer
from gyre_engine.transfer.wire import HEADER, OK, REQUEST

NBYTES = 1 << 16


@pytest.fixture
def transfer():
    transfer = TcpTransfer()
    yield transfer
    transfer.close()


def read_from(transfer, answer, timeout=5.0):
    """Read from a peer that answers any request with `answer`, then holds the connection, or closes it for None."""
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
        source = Descriptor("127.0.0.1", server.getsockname()[1], bytes(16), bytes(32), NBYTES, 4096, bytes(32))
        try:
            transfer.read(source, Region.of_array(np.zeros(NBYTES, dtype=np.uint8)), timeout=timeout)
        finally:
            done.set()
            thread.join()


START = OK + HEADER.pack(NBYTES, 4096)


@pytest.mark.parametrize("answer", [b"", OK, START, START + bytes(32) + bytes(4000)])
def test_a_peer_that_stalls_anywhere_raises_peer_lost_at_the_timeout(transfer, answer):
    started = time.monotonic()
    with pytest.raises(PeerLost):
        read_from(transfer, (answer, "hold"), timeout=0.2)
    assert 0.2 <= time.monotonic() - started < 2


@pytest.mark.parametrize("answer", [b"", OK, START + bytes(32) + bytes(100)])
def test_a_peer_that_breaks_off_raises_peer_lost_at_once(transfer, answer):
    with pytest.raises(PeerLost, match="after"):
        read_from(transfer, (answer, "close"), timeout=30)


def test_a_peer_that_serves_another_size_or_other_bytes_is_not_believed(transfer):
    with pytest.raises(IntegrityError, match="another size"):
        read_from(transfer, (OK + HEADER.pack(NBYTES * 2, 4096), "hold"))
    with pytest.raises(IntegrityError, match="bytes from 0 on"):
        read_from(transfer, (START + bytes(32) + bytes(4096), "hold"))


def test_a_stranger_on_the_port_does_not_stop_the_others(transfer):
    data = np.arange(100, dtype=np.uint8)
    descriptor = transfer.register(Region.of_array(data))
    with socket.create_connection(("127.0.0.1", transfer.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: someone\r\nUser-Agent: of another protocol\r\n\r\n")
        assert stranger.recv(100) == b"\x01"
        target = np.zeros_like(data)
        transfer.read(descriptor, Region.of_array(target), timeout=5)
    assert np.array_equal(data, target)


def test_unregister_waits_for_readers_and_names_those_that_stay():
    """A reader in the middle of a chunk that takes no more holds the region, until it goes. One chunk: no socket buffers it."""
    with contextlib.closing(TcpTransfer(chunk=1 << 26)) as transfer:
        descriptor = transfer.register(Region.of_array(np.zeros(1 << 26, dtype=np.uint8)))
        reader = socket.create_connection(("127.0.0.1", transfer.port))
        reader.sendall(REQUEST.pack(b"gyT1", descriptor.key_id, descriptor.capability))
        begun = 0
        while begun < 4096:
            begun += len(reader.recv(4096))
        with reader, pytest.raises(TimeoutError, match="1 readers still hold"):
            transfer.unregister(descriptor, timeout=0.1)


def test_only_contiguous_memory_can_be_a_region():
    with pytest.raises(ValueError, match="contiguous"):
        Region.of_array(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match="contiguous"):
        Region.of_array(np.zeros((4, 4)).T[1:])
