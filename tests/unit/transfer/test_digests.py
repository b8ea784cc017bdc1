"""What chunks are verified with: XXH64 as published, and digests of chunks in their order."""

import pytest

from gyre_engine.transfer import Descriptor, IntegrityError
from gyre_engine.transfer.digests import checked_digests, chunk_digests, digest_of, root_digest, verify

PUBLISHED = {
    b"": "ef46db3751d8e999",
    b"a": "d24ec4f1a98c6e5b",
    b"abc": "44bc2cf5ad770999",
}
"""As xxHash's own tools say them."""


@pytest.mark.parametrize("data", PUBLISHED)
def test_a_digest_is_the_published_hash(data):
    assert digest_of(data).hex() == PUBLISHED[data] == digest_of(memoryview(data)).hex()


def test_chunks_are_hashed_in_order_however_many_threads_do_it():
    """20 MiB take several threads; the last chunk is shorter."""
    data = b"".join(number.to_bytes(4, "big") * 1024 for number in range(5 * 1024)) + b"abc"
    digests = chunk_digests(memoryview(data), 4096)
    assert digests == [digest_of(data[start : start + 4096]) for start in range(0, len(data), 4096)]
    assert digests[-1].hex() == PUBLISHED[b"abc"]
    assert chunk_digests(memoryview(b""), 4096) == []


def test_what_peers_tell_is_believed_only_where_it_is_the_descriptors_and_a_chunk_only_where_it_is_its_digests():
    digests = chunk_digests(memoryview(b"a" + b"b"), 1)
    source = Descriptor("h", 1, bytes(16), b"", 2, 1, root_digest(digests))
    assert checked_digests(b"".join(digests), source, "it") == digests
    with pytest.raises(IntegrityError, match="it serves other bytes"):
        checked_digests(b"".join(reversed(digests)), source, "it")
    verify(memoryview(b"a"), digests[0], 0, "it")
    with pytest.raises(IntegrityError, match="it: bytes from 1 on"):
        verify(memoryview(b"a"), digests[1], 1, "it")
