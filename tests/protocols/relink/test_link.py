"""Links: both peers' channels, multicast, shutdown, loss."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.errors import LocalProtocolError
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.decoder import Decoder
from fyrehose.protocols.relink.frames import (
    PONG,
    RESUME,
    SHUTDOWN,
    Ack,
    Acknowledgement,
    Gathered,
    Message,
    Op,
    Operation,
    Terms,
)
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.messages import MessageSequence, column_of


def link(attached: bool = True, **more: Any) -> Link:
    limits = LinkLimits(**more.pop("limits", {}))
    keep = {key: more.pop(key) for key in ("durable", "kept") if key in more}
    result = Link(Terms(endpoint="e", connector_size=1, listener_size=1, **more), True, 1, 2, limits, **keep)
    if attached:
        result.attach(resumed=False)
    return result


def packets(of: Link) -> list[Any]:
    decoder = Decoder(1, 1)
    decoder.feed(b"".join(of.out))
    of.out.clear()
    found = []
    while (packet := decoder.next_packet()) is not None:
        found.append(packet)
    return found


def message(*channels: int) -> Message:
    return Message(channels=channels, parts=(b"x",), multicast=len(channels) != 1)


def test_multicast_is_resent_as_unicasts() -> None:
    ours = link()
    assert ours.send((1, 2, 1), (b"x",)) == (0, 0, 1)
    assert packets(ours) == [message(1, 2, 1)]
    ours.detach()
    ours.attach(resumed=True)
    packets(ours)
    ours.receive(Acknowledgement(kind=Ack.RECEIVED, channels=(1,), number=0))
    ours.receive(RESUME)
    assert packets(ours) == [message(1), message(2)]


def test_multicast_without_room_on_one_channel_is_not_sent() -> None:
    ours = link(limits={"window": 2})
    ours.send((1,), (b"x",))
    with pytest.raises(LocalProtocolError, match="channel 1"):
        ours.send((2, 1, 1), (b"x",))
    assert ours.channel(2).next == 0
    assert ours.send((), (b"x",)) == ()


LIMITS = {"targets": 2, "parts": 4, "sent_size": 64}


@pytest.mark.parametrize(
    "wrong",
    [((300,), (b"x",)), ((0,) * 3, ()), ((0,), (b"",) * 5), ((0,), (b"x" * 65,)), ((0,), (b"x" * 48, b"", b"", b""))],
)
def test_messages_beyond_limits_are_not_sent(wrong: Any) -> None:
    with pytest.raises(LocalProtocolError):
        link(limits=LIMITS).send(*wrong)


@pytest.mark.parametrize(
    "most", [((0,) * 2, (b"x",)), ((0,), (b"",) * 4), ((0,), (b"x" * 64,)), ((0,), (b"x" * 48, b"", b""))]
)
def test_messages_at_the_limits_are_sent(most: Any) -> None:
    """The lengths of several parts count: four bytes for each, and four for their number."""
    assert len(link(limits=LIMITS).send(*most)) == len(most[0])


def test_operations_on_unopened_channels_are_refused() -> None:
    ours = link(connector_transactions=True)
    for wrong in (lambda: ours.decide(0, Op.COMMIT), lambda: ours.close(0), lambda: ours.stage(0, 0)):
        with pytest.raises(LocalProtocolError):
            wrong()
    ours.send((0,), (b"x",))
    with pytest.raises(LocalProtocolError, match="undecided"):
        ours.close(0)
    ours.shutdown()
    with pytest.raises(LocalProtocolError, match="shutting down"):
        ours.send((1,), (b"x",))


def test_results_are_forgotten_after_a_pong() -> None:
    ours = link(listener_transactions=True, limits={"results": 2})
    for _ in range(4):
        ours.receive(message(0))
    ours.receive(Operation(kind=Op.COMMIT, channels=(0,), number=3))
    ours.consume(0, 2, Ack.COMMITTED)
    assert ours.pings == 1
    ours.consume(0, 3, Ack.COMMITTED)
    assert ours.receive(PONG) == []
    assert [(run.first, run.last) for run in ours.receiving[0].results] == [(3, 3)]


def test_closed_is_sent_after_the_pong_of_the_barrier() -> None:
    ours = link()
    close = Operation(kind=Op.CLOSE, channels=(0,))
    ours.receive(message(0))
    ours.receive(close)
    assert ours.pings == 0
    ours.consume(0, 0)
    assert ours.pings == 1
    assert ours.receive(close) == []
    assert ours.receive(PONG) == [events.Finished(channel=0)]
    assert ours.receive(close) == [events.Finished(channel=0)], (
        "the event is repeated until the owner has forgotten the channel"
    )
    packets(ours)
    ours.forget(0)
    ours.receive(close)
    assert [packet.kind for packet in packets(ours)] == [Ack.CLOSED, Ack.CLOSED]


def test_link_ends_after_all_channels_are_closed() -> None:
    ours = link()
    ours.send((0,), (b"x",))
    ours.receive(message(5))
    assert ours.shutdown() == []
    ours.close(0)
    ours.receive(Acknowledgement(kind=Ack.CONSUMED, channels=(0,)))
    assert ours.receive(Acknowledgement(kind=Ack.CLOSED, channels=(0,))) == [events.ChannelClosed(channel=0)]
    assert SHUTDOWN in packets(ours)
    assert ours.receive(SHUTDOWN) == [events.PeerShutdown()], "the peer's open channel continues"
    ours.receive(Operation(kind=Op.CLOSE, channels=(5,)))
    ours.consume(5, 0)
    ours.receive(PONG)
    assert ours.forget(5) == [events.Ended()]


def test_durable_link_does_not_acknowledge_received_messages() -> None:
    ours = link(durable=True, kept=False)
    ours.receive(message(0))
    ours.acknowledge()
    assert packets(ours) == []
    ours.detach()
    ours.attach(resumed=True)
    assert ours.receiving[0].next == 0
    plain = link()
    plain.receive(message(0))
    plain.acknowledge()
    assert packets(plain) == [Acknowledgement(kind=Ack.RECEIVED, channels=(0,), number=0)]


def test_run_is_sent_as_one_packet_per_message_and_resent() -> None:
    ours = link()
    assert ours.send_run(1, column_of([b"a", b"b"])) == 0
    assert ours.send_run(1, column_of([b"c"])) == 2
    sent = [Message(channels=(1,), parts=(part,)) for part in (b"a", b"b", b"c")]
    assert packets(ours) == sent
    ours.detach()
    ours.send_run(1, column_of([b"d"]))
    assert packets(ours) == []
    ours.attach(resumed=True)
    packets(ours)
    ours.receive(Acknowledgement(kind=Ack.RECEIVED, channels=(1,), number=1))
    ours.receive(RESUME)
    assert packets(ours) == [sent[2], Message(channels=(1,), parts=(b"d",))]


def test_run_without_room_is_not_sent() -> None:
    ours = link(limits={"window": 2, "sent_size": 64})
    with pytest.raises(LocalProtocolError, match="full"):
        ours.send_run(0, column_of([b"a"] * 3))
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        ours.send_run(0, column_of([b"a" * 65]))
    assert ours.send_run(0, column_of([b"a" * 64, b"b" * 64])) == 0


def test_gathered_messages_are_handled_by_channel() -> None:
    ours = link(limits={"channels": 3})
    packet = Gathered(runs=((7, column_of([b"a", b"b"])), (8, column_of([b"c"]))))
    assert ours.accepts([7, 8])
    assert ours.receive(packet) == [
        events.Received(channel=7, first=0, messages=MessageSequence.of((b"a",), (b"b",))),
        events.Received(channel=8, first=0, messages=MessageSequence.of((b"c",))),
    ]
    ours.acknowledge()
    assert [(ack.channels, ack.number) for ack in packets(ours)] == [((7,), 1), ((8,), 0)]
    assert ours.accepts([7, 8, 9])
    assert not ours.accepts([9, 10]), "two more channels would exceed the limit"
    ours.receive(Operation(kind=Op.CLOSE, channels=(8,)))
    assert ours.accepts([7, 9])
    assert not ours.accepts([7, 8]), "channel 8 is being closed"
    ours.receive(SHUTDOWN)
    assert ours.accepts([7])
    assert not ours.accepts([7, 9]), "no new channel is allowed after shutdown"


def test_multicast_payload_is_charged_once() -> None:
    ours = link(limits={"backlog_size": 1_000_000, "message_size": 1_000_000})
    big = Message(channels=tuple(range(100)), parts=(b"x" * 900_000,), multicast=True)
    assert ours.receive(Message(channels=(), parts=(b"x" * 900_000,), multicast=True)) == []
    assert not ours.receiving
    assert len(ours.receive(big)) == 100
    assert not ours.blocked
    ours.receive(big)
    assert ours.blocked
