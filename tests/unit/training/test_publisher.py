"""Publication does not end with a reader that never comes to an end, and what is read is what was published."""

import numpy as np

from consumers.trainer.board import Board
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import KEPT, Publisher
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.log.memory import MemoryLog
from gyre_engine.transfer import Descriptor, Region
from gyre_engine.transfer.tcp import TcpTransfer
from tests.unit.training.test_trainers_protocol import CountingOptimizer, CountingReplica


class Held(TcpTransfer):
    """Somebody stays inside of every registration for as long as `stuck` says."""

    stuck = True

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Descriptor] = []

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        if self.stuck:
            raise TimeoutError("1 readers still hold it")
        super().unregister(descriptor, timeout=timeout)
        self.ended.append(descriptor)


def publisher_of(log: MemoryLog, replica: CountingReplica, transfer: TcpTransfer) -> Publisher:
    """Of a core that the log has elected."""
    pen = Pen(log, Board("c0"), 5.0)
    pen.write([CoreElected(core_epoch=1, holder="c0", cell="c0")])
    return Publisher(pen, replica, CountingOptimizer(replica), transfer, {})


def published(log: MemoryLog) -> list[Published]:
    return [r.event for r in log.read("training") if isinstance(r.event, Published)]


def test_a_version_that_is_still_read_stays_until_a_later_publication() -> None:
    log, transfer = MemoryLog(), Held()
    publisher = publisher_of(log, CountingReplica(), transfer)
    publisher.export()
    for version in range(KEPT + 2):
        publisher.publish(1, version, [])
    assert transfer.ended == []
    transfer.stuck = False
    publisher.publish(1, KEPT + 2, [])
    assert [d.to_bytes() for d in transfer.ended] == [e.descriptor for e in published(log)[:-KEPT]]
    transfer.close()


def test_a_version_is_read_as_it_was_published_though_training_goes_on() -> None:
    log, transfer, replica = MemoryLog(), TcpTransfer(), CountingReplica()
    replica.weights = np.arange(4096, dtype=np.float32)
    publisher = publisher_of(log, replica, transfer)
    for version in range(KEPT):
        publisher.export()
        publisher.publish(1, version, [])
        replica.weights += 1
    for event in published(log):
        read = np.zeros(event.nbytes, dtype=np.uint8)
        transfer.read(Descriptor.from_bytes(event.descriptor), Region.of_array(read), timeout=10)
        assert np.array_equal(read.view(np.float32), np.arange(4096) + event.version)
    transfer.close()
