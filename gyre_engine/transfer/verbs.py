"""Transfer over RDMA cards: reliable queue pairs and RDMA READ, so that the owner's processor does nothing for a read.

After the request that `wire` describes
owner     status(1), the address of its queue pair and its memory (`cards.Address`), the hash(8) of each chunk
reader    the address of its queue pair
owner     status(1) once its pair is connected; it holds the pair until the reader hangs up, the lease ends or it closes
The hash is the one of registration, or of this moment for memory that changes.

promises  no queue pair is made before the capability was checked; a dead peer raises within the timeout; a chunk that is not what was
          registered raises, one that was verified is not read again; after `unregister` returned, the memory is not read any more
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from gyre_engine.transfer.cards import OUTSTANDING, Address, Card, Pair, constants
from gyre_engine.transfer.digests import checked_digests, chunk_digests, verify
from gyre_engine.transfer.port import DIGEST_BYTES, Descriptor, PeerLost, Progress, Region
from gyre_engine.transfer.registry import STALLED_READER_SECONDS, Keys, Registration, Registry
from gyre_engine.transfer.tcp import STREAMS, runs_of
from gyre_engine.transfer.wire import OK, REFUSED, VERBS, Deadline, expect, knock, receive, send

MESSAGE_BYTES = 8 << 20
"""Longest single read: neighbouring chunks in one, so that asking costs little. Soft-RoCE takes no more."""
LOOK_SECONDS = 0.0002, 0.02
"""Between looks at an empty completion queue, least and most: OUTSTANDING messages keep any card busy for longer than the least."""
OWN_SHARE, OWN_BYTES = 1 / 8, 8 << 20
"""Of its time, and at once, that the thread which keeps the card busy gives to verifying; what is more, others do."""
PEER_SECONDS = 0.05
"""Between looks at whether the peer still holds its end."""


class VerbsTransfer:
    """A Transfer (see the port) whose owner listens on `host` for the exchange of addresses; arguments as TcpTransfer's.

    device: name of the card; None takes the first with an active port. Raises NotPossible where there is none.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        secret: bytes | None = None,
        chunk: int = MESSAGE_BYTES,
        device: str | None = None,
    ) -> None:
        self._card = Card(device)
        self._keys = Keys(secret)
        self._registry = Registry(VERBS, self._keys, chunk, (host, port), self._serve)
        self.host, self.port = advertise or host, self._registry.port
        self._closed = False

    def register(self, region: Region, *, changes: bool = False, lease: float | None = None) -> Descriptor:
        """See the port. The card reads where the bytes lie. Raises NotPossible where it cannot."""
        memory = self._card.memory(region, remote=True)
        return self._registry.add(region, self.host, changes=changes, lease=lease, memory=memory)

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        """See the port. An unknown registration has ended already."""
        registration = self._registry.remove(descriptor, timeout)
        if registration and registration.memory:
            registration.memory.close()

    def read(self, source: Descriptor, into: Region, *, timeout: float, progress: Progress | None = None) -> None:
        """See the port."""
        if into.nbytes != source.nbytes:
            raise ValueError(f"the source has {source.nbytes} bytes, the target {into.nbytes}; they must be equal")
        deadline = Deadline.after(timeout, f"peer {source.host}:{source.port}")
        progress = progress or Progress()
        with knock(source, VERBS, self._keys.opens(source), deadline) as connection, self._paired() as pair:
            expect(connection, source, deadline)
            peer = Address.from_bytes(receive(connection, Address.SIZE, deadline))
            told = receive(connection, source.chunks * DIGEST_BYTES, deadline)
            digests = checked_digests(told, source, deadline.peer)
            send(connection, pair.address().to_bytes(), deadline)
            pair.connect(peer)
            expect(connection, source, deadline)
            reading = _Reading(source, into, digests, progress, deadline)
            reading.over(pair, peer, self._card, connection)

    def close(self) -> None:
        """See the port."""
        if self._closed:
            return
        self._closed = True
        for registration in self._registry.close():
            if registration.memory:
                registration.memory.close()
        self._card.close()

    @contextmanager
    def _paired(self) -> Iterator[Pair]:
        pair = Pair(self._card)
        try:
            yield pair
        finally:
            pair.close()

    def _serve(self, connection: socket.socket, registration: Registration) -> None:
        """Give a reader its queue pair, and hold it until the reader hangs up or the lease is over."""
        with registration.inside() as alive:
            if not alive:
                connection.sendall(REFUSED)
                return
            digests = registration.digests or chunk_digests(registration.region.view(), registration.chunk)
            deadline = Deadline.after(STALLED_READER_SECONDS, "the reader")
            with self._paired() as pair:
                send(
                    connection,
                    OK + pair.address(registration.memory, registration.region.address).to_bytes() + b"".join(digests),
                    deadline,
                )
                pair.connect(Address.from_bytes(receive(connection, Address.SIZE, deadline)))
                send(connection, OK, deadline)
                connection.settimeout(registration.left())
                connection.recv(1)


class _Reading:
    """One read: the card fetches messages; this thread keeps it busy and verifies what is complete, others the rest."""

    def __init__(self, source: Descriptor, into: Region, digests: list[bytes], progress: Progress, deadline: Deadline) -> None:
        self._source, self._into, self._view = source, into, into.view()
        self._digests, self._progress, self._deadline = digests, progress, deadline
        self._left = deque(self._messages(progress.begin(source)))
        self._flying: deque[tuple[int, range]] = deque()
        self._whole: list[int] = []
        self._verifying: deque[Future[None]] = deque()
        self._came, self._looked, self._spent = 0, 0.0, 0.0
        self._began = time.monotonic()

    def over(self, pair: Pair, peer: Address, card: Card, connection: socket.socket) -> None:
        """Read; on return neither the card nor a thread touches the target. Raises PeerLost or IntegrityError."""
        memory = card.memory(self._into, remote=False)
        try:
            with ThreadPoolExecutor(STREAMS, "verify") as threads:
                while self._left or self._flying:
                    posted = self._post(pair, memory, peer)
                    if not self._take(pair) and not posted:
                        time.sleep(self._pause())
                    self._check(threads)
                    self._look_at(connection)
                for verified in self._verifying:
                    verified.result()
        finally:
            pair.close()
            if memory:
                memory.close()

    def _messages(self, chunks: list[int]) -> Iterator[tuple[int, int, range]]:
        """(offset, nbytes, the chunks that are complete with it)"""
        size = self._source.chunk
        for first, count in runs_of(chunks, max(1, MESSAGE_BYTES // size)):
            end = min((first + count) * size, self._source.nbytes)
            for offset in range(first * size, end, MESSAGE_BYTES):
                last = offset + MESSAGE_BYTES >= end
                yield offset, min(MESSAGE_BYTES, end - offset), range(first, first + count) if last else range(0)

    def _post(self, pair: Pair, memory: Any, peer: Address) -> bool:
        """Ask for the next message, where there is room for it: Soft-RoCE moves it before this returns."""
        if not self._left or len(self._flying) == OUTSTANDING:
            return False
        offset, nbytes, completes = self._left.popleft()
        pair.post_read(memory, self._into.address + offset, peer, offset, nbytes)
        self._flying.append((offset, completes))
        return True

    def _take(self, pair: Pair) -> bool:
        """What the card has done, in the order in which it was asked for; whether that is anything."""
        count, done = pair.completions.poll(OUTSTANDING)
        for completion in done:
            offset, completes = self._flying.popleft()
            if completion.status != constants().IBV_WC_SUCCESS:
                raise PeerLost(
                    f"{self._deadline.peer} was lost: reading from {offset} on ended with verbs status {completion.status}"
                )
            self._whole += completes
        self._came += count
        return bool(count)

    def _pause(self) -> float:
        """Seconds until a quarter of what flies may have come, as fast as it came so far: looking in vain costs whoever could use the
        processor, a card in software for one."""
        a_message = (time.monotonic() - self._began) / max(1, self._came)
        least, most = LOOK_SECONDS
        return min(most, max(least, a_message * len(self._flying) / 4))

    def _check(self, threads: ThreadPoolExecutor) -> None:
        """Verify what is complete, or have it verified: with a slow card no thread waits for another. Raises IntegrityError."""
        while self._verifying and self._verifying[0].done():
            self._verifying.popleft().result()
        if not self._whole:
            return
        complete, self._whole = self._whole, []
        now = time.monotonic()
        if self._spent > OWN_SHARE * (now - self._began) or len(complete) * self._source.chunk > OWN_BYTES:
            self._verifying.append(threads.submit(self._verify, complete))
        else:
            self._verify(complete)
            self._spent += time.monotonic() - now

    def _look_at(self, connection: socket.socket) -> None:
        """Once a while: raises PeerLost where time is over or the owner has hung up."""
        if not self._flying or time.monotonic() < self._looked + PEER_SECONDS:
            return
        self._deadline.left()
        self._looked = time.monotonic()
        connection.setblocking(False)
        try:
            if not connection.recv(1, socket.MSG_PEEK):
                raise PeerLost(f"{self._deadline.peer} closed with {len(self._left) + len(self._flying)} messages unread")
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLost(f"{self._deadline.peer} was lost: {error}") from error

    def _verify(self, chunks: list[int]) -> None:
        for index in chunks:
            start = index * self._source.chunk
            part = self._view[start : start + self._source.chunk]
            verify(part, self._digests[index], start, self._deadline.peer)
            self._progress.verified(index, len(part))
