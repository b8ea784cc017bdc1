"""Publication does not end with a reader that never comes to an end."""

from consumers.trainer.board import Board
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import KEPT, Publisher
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.log.memory import MemoryLog
from gyre_engine.transfer import Descriptor
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


def test_a_version_that_is_still_read_stays_until_a_later_publication() -> None:
    log, board, transfer, replica = MemoryLog(), Board("c0"), Held(), CountingReplica()
    pen = Pen(log, board, 5.0)
    pen.write([CoreElected(core_epoch=1, holder="c0", cell="c0")])
    publisher = Publisher(pen, replica, CountingOptimizer(replica), transfer, {})
    publisher.export()
    for version in range(KEPT + 2):
        publisher.publish(1, version, [])
    assert transfer.ended == []
    transfer.stuck = False
    publisher.publish(1, KEPT + 2, [])
    published = [r.event for r in log.read("training") if isinstance(r.event, Published)]
    assert [d.to_bytes() for d in transfer.ended] == [e.descriptor for e in published[:-KEPT]]
    transfer.close()
