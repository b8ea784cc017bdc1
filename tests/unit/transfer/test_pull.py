"""Published bytes: they have the published SHA-256, whoever served them and over however many reads."""

import contextlib
import hashlib

import numpy as np
import pytest

from gyre_engine.transfer import IntegrityError, Region
from gyre_engine.transfer.pull import Pull
from gyre_engine.transfer.tcp import TcpTransfer

NBYTES = 3 * 4096 + 5


@pytest.fixture
def transfer():
    with contextlib.closing(TcpTransfer(chunk=4096)) as transfer:
        yield transfer


def noise(seed):
    return np.frombuffer(np.random.default_rng(seed).bytes(NBYTES), dtype=np.uint8).copy()


def serve(transfer, data):
    return transfer.register(Region.of_array(data)).to_bytes()


def test_an_owner_whose_chunks_are_right_but_whose_bytes_are_others_is_not_believed_and_the_next_one_is_read_whole(transfer):
    """Its descriptor was made for what it serves, so that every chunk is what it should be; only the hash of all tells."""
    published, other = noise(1), noise(2)
    other[:4096] = published[:4096]
    sha256, pull = hashlib.sha256(published).hexdigest(), Pull(transfer)
    with pytest.raises(IntegrityError, match=f"published as {sha256[:16]}"):
        pull.read(sha256, NBYTES, serve(transfer, other), 5)
    assert np.array_equal(pull.read(sha256, NBYTES, serve(transfer, published), 5), published)


def test_what_was_given_out_is_the_callers(transfer):
    """The next read fills other memory."""
    first, second, pull = noise(1), noise(2), Pull(transfer)
    one, two = (pull.read(hashlib.sha256(data).hexdigest(), NBYTES, serve(transfer, data), 5) for data in (first, second))
    assert np.array_equal(one, first) and np.array_equal(two, second)
