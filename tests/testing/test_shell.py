"""The transport and the peer in memory behave as a socket does for a protocol."""

from __future__ import annotations

from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from fyrehose.testing import ClientSide, Transport


class Echo(TwistedProtocol):
    """Answers in the next turn of the reactor."""

    clock = Clock()
    ended: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.clock.callLater(0, lambda: self.transport.write(data.upper()))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.ended = reason


def test_peer_exchanges_bytes_with_the_protocol_and_leaves() -> None:
    peer = ClientSide.connect(Factory.forProtocol(Echo), Echo.clock, "192.0.2.1")
    assert peer.transport.getPeer().host == "192.0.2.1"
    peer.send(b"one")
    assert peer.received() == b"ONE"
    assert peer.received() == b""
    peer.leave()
    assert peer.protocol.ended is not None


def test_transport_records_how_it_was_closed() -> None:
    transport = Transport()
    transport.setTcpNoDelay(True)
    assert transport.reads
    transport.pauseProducing()
    assert not transport.reads
    transport.loseWriteConnection()
    assert (transport.half_closed, transport.aborted, transport.disconnecting) == (True, False, False)
    transport.abortConnection()
    assert (transport.aborted, transport.disconnecting) == (True, True)
