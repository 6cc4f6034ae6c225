"""The server: publishing, links over reconnections and restarts, and its rows of the threat table."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.x509 import load_pem_x509_certificate
from OpenSSL.crypto import X509

from fyrehose.broker.policy import parse
from fyrehose.broker.quotas import PeerLimits
from fyrehose.broker.sequencer import Sequencer
from fyrehose.broker.streams import StreamRule, StreamRules
from fyrehose.errors import Broken
from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.frames import (
    PING,
    PONG,
    Ack,
    Acknowledgement,
    Hello,
    Message,
    Op,
    Operation,
    Terms,
    pack_version,
)
from fyrehose.protocols.relink.service import RelinkFactory
from fyrehose.protocols.relink.session import Linked, LinkUnknown
from fyrehose.testing import MemoryJournal
from fyrehose.testing.certificates import Authority


def shown(directory: Path, name: str) -> X509:
    """Return a certificate as a transport returns it."""
    issued = Authority(directory).issue(name)
    return X509.from_cryptography(load_pem_x509_certificate(Path(issued.certificate).read_bytes()))


def kinds(found: list[Any]) -> list[str]:
    return [type(event).__name__ for event in found]


def send(peer: Any, *payloads: bytes, channel: int = 0) -> None:
    for payload in payloads:
        peer.link.send((channel,), (payload,))


# Publishing.


def test_records_have_source_producer_and_topic(make_server: Any) -> None:
    server = make_server()
    peer = server.linked()
    send(peer, b"a", b"b", channel=7)
    peer.link.send((7,), (b"c", b"", b"d"))
    peer.talk()
    first, second, third = server.records()
    name = server.registry.entries.popitem()[1].label
    assert (first.source, first.producer, first.topic, first.producer_seq) == ("relink", f"{name}.0", "7", 0)
    assert (second.producer_seq, third.producer_seq) == (1, 2)
    assert first.content_type is None
    assert third.content_type == "application/vnd.fyrehose.relink-parts"
    assert str(peer.link.id) not in name


def test_one_read_is_one_write(make_server: Any) -> None:
    """The write has the messages of all commits in order, and the cursors of each channel once."""
    server = make_server(auto=False)
    peer = server.linked_durably(connector_transactions=True)
    links = len(server.records(".relink/x"))
    for first, channel in ((0, 0), (2, 0), (4, 1), (6, 0)):
        send(peer, b"%d" % first, b"%d" % (first + 1), channel=channel)
        peer.link.decide(channel, Op.COMMIT)
    send(peer, b"-")
    peer.link.decide(0, Op.ROLLBACK)
    send(peer, b"8")
    peer.link.decide(0, Op.COMMIT)
    peer.talk()
    assert len(server.journal.pending) == 1
    server.journal.commit()
    found = peer.talk()
    assert server.payloads() == [b"%d" % number for number in range(9)]
    assert [len(run) for run in server.journal.read("s", 1, 1 << 20)] == [4, 2, 2, 1]
    assert len(server.records(".relink/x")) == links + 1
    consumed = [(event.channel, event.first, event.last) for event in found if isinstance(event, events.Consumed)]
    assert consumed == [(0, 0, 7), (1, 0, 1)]


def test_durable_writes_are_acknowledged_at_once_in_one_write(make_server: Any) -> None:
    """The server sends the acknowledgements of one commit in the same turn of the reactor, in one write."""
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.publish(b"one")
    server.journal.commit()
    assert peer.protocol.transport.value() == Acknowledgement(kind=Ack.CONSUMED, channels=(0,)).serialize(1)
    peer.talk()
    for payload in (b"two", b"three"):
        peer.publish(payload)
    assert peer.link.sending[0].base == 1
    said: list[bytes] = []
    peer.protocol.transport.writeSequence = lambda pieces: said.append(b"".join(pieces))
    server.journal.commit()
    plain = Acknowledgement(kind=Ack.CONSUMED, channels=(0,)).serialize(1)
    assert said == [2 * plain]


def test_dead_letters_are_counted_in_place_of_refusals(make_server: Any) -> None:
    server = make_server(refused="dead-letter")
    server.broker.restrict("s", 3)
    server.used(b"1", b"too large", b"2", b"large, too")
    assert (server.count("dead-letters"), server.count("PayloadTooLarge")) == (2, 0)


def test_link_ends_if_the_dead_letter_is_refused_too(make_server: Any) -> None:
    server = make_server(refused="dead-letter")
    server.broker.restrict("s", 3)
    server.broker.restrict("dead.relink", 3)
    peer = server.used(b"1", b"too large")
    assert peer.closed
    assert not server.registry.entries
    assert server.payloads() == [b"1"]
    assert (server.count("dead-letters"), server.count("PayloadTooLarge")) == (0, 1)


def test_refused_commit_is_answered_and_not_kept_as_a_dead_letter(make_server: Any) -> None:
    server = make_server(refused="dead-letter")
    server.broker.restrict("s", 3)
    peer = server.linked(connector_transactions=True)
    send(peer, b"too large")
    peer.link.decide(0, Op.COMMIT)
    peer.talk()
    assert [e.result for e in peer.events if isinstance(e, events.Resulted)] == [Ack.UNCOMMITTED]
    assert server.count("dead-letters") == 0


@pytest.mark.parametrize("together", [False, True])
def test_messages_before_a_refused_one_are_acknowledged(make_server: Any, together: bool) -> None:
    """A publisher that sends unacknowledged messages again stores none of them twice."""
    server = make_server(auto=False)
    server.broker.restrict("s", 3)
    peer = server.linked_durably()
    for payload in (b"1", b"2", b"3", b"too large", b"4"):
        send(peer, payload)
        if not together:
            peer.talk()
    peer.publish(b"5", channel=1)
    assert not peer.closed
    again = server.connect(hello=Hello(terms=peer.link.terms, epoch=peer.link.epoch, link_id=peer.link.id))
    again.talk()
    server.journal.commit()
    server.clock.advance(0)
    assert peer.closed
    peer.events += peer.session.receive_data(peer.transport.value())
    consumed = {e.channel: e.last for e in peer.events if isinstance(e, events.Consumed)}
    assert consumed == ({0: 2, 1: 0} if together else {0: 2}), "each channel is acknowledged up to the refused message"
    assert server.payloads() == [b"1", b"2", b"3", *([b"5"] if together else [])]
    again.talk()
    assert again.link.id != peer.link.id, "a resumed link would send the same message again"
    again.leave()
    peer.leave()
    assert len(server.registry.entries) == 1, "the refused link is still known"
    unsettled = [message.parts[0] for message in peer.link.unsettled()]
    assert unsettled == [b"too large", b"4", *([] if together else [b"5"])]


def test_messages_before_a_policy_change_are_acknowledged(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.publish(b"1")
    server.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "subscribe": "s"}]}))
    peer.publish(b"2")
    server.journal.commit()
    server.clock.advance(0)
    assert peer.session.receive_data(peer.transport.value()) == [events.Consumed(channel=0, first=0, last=0)]
    assert peer.closed
    assert server.payloads() == [b"1"]
    assert not server.registry.entries


# Undecided messages.


def receipts(peer: Any) -> list[int]:
    return [channel.recv for channel in peer.link.sending.values()]


def test_undecided_messages_of_one_read_are_acknowledged_once(make_server: Any) -> None:
    """The server sends ``received``, because a peer may wait for it before it commits."""
    server = make_server()
    peer = server.linked(connector_transactions=True)
    send(peer, b"1", b"2", b"3")
    peer.say(b"".join(peer.session.data_to_send()))
    assert peer.transport.value() == Acknowledgement(kind=Ack.RECEIVED, channels=(0,), number=2).serialize(1)
    peer.talk()
    assert receipts(peer) == [2]
    peer.link.decide(0, Op.COMMIT)
    assert kinds(peer.talk()) == ["Resulted", "Consumed"]


def test_received_is_not_sent_for_messages_that_need_no_decision(make_server: Any) -> None:
    """``consumed`` implies ``received``, so a commit that arrives with its messages needs no other packet."""
    server = make_server(auto=False)
    for transactional in (False, True):
        peer = server.linked_durably(connector_transactions=transactional)
        send(peer, b"1", b"2")
        if transactional:
            peer.link.decide(0, Op.COMMIT)
        peer.say(b"".join(peer.session.data_to_send()))
        server.clock.advance(0)
        assert peer.transport.value() == b""


def test_undecided_messages_survive_a_reconnection(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"1", b"2", connector_transactions=True)
    peer.leave()
    again = server.connect(old=peer.link)
    heard: list[bytes] = []
    take = again.protocol.dataReceived
    again.protocol.dataReceived = lambda data: (heard.append(data), take(data))
    again.talk()
    assert receipts(again) == [1]
    assert Message(channels=(0,), parts=(b"1",)).serialize(1) not in b"".join(heard), "the message was not sent again"
    again.link.decide(0, Op.COMMIT)
    again.talk()
    assert server.payloads() == [b"1", b"2"]
    assert server.count("links-resumed") == 1


def test_full_disk_ends_the_connection_but_keeps_the_link(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    server.journal.enter(JournalState.READ_ONLY, "full")
    peer.publish(b"one")
    assert not peer.closed, "the peer would reconnect at once"
    server.clock.advance(5)
    assert peer.closed
    peer.leave()
    server.journal.enter(JournalState.WRITABLE, "room")
    again = server.linked(old=peer.link)
    server.journal.commit()
    assert kinds(again.events) == ["Linked", "Resumed"]
    assert again.talk() == [events.Consumed(channel=0, first=0, last=0)]
    assert server.payloads() == [b"one"]


def test_what_waits_for_room_is_consumed_once_on_the_link_that_is_resumed(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.publish(b"one")
    server.journal.enter(JournalState.READ_ONLY, "full")
    server.broker.stuck("full")
    assert peer.closed
    peer.leave()
    again = server.connect(old=peer.link)
    assert again.talk() == [], "the link waits for its write"
    server.journal.enter(JournalState.WRITABLE, "room")
    assert "Linked" in kinds(again.talk())
    assert server.payloads() == [b"one"]


# Links.


@pytest.mark.parametrize("auto", [True, False])
def test_channel_that_is_closed_twice_in_one_read_is_closed(make_server: Any, auto: bool) -> None:
    server = make_server(auto=auto)
    peer = server.linked_durably()
    close = Operation(kind=Op.CLOSE, channels=(0,)).serialize(1)
    peer.say(Message(channels=(0,), parts=(b"x",)).serialize(1))
    server.clock.advance(0)
    server.journal.commit()
    peer.say(close)
    peer.transport.clear()
    peer.say(PONG.serialize() + close)
    server.clock.advance(0)
    server.journal.commit()
    assert peer.transport.value() == Acknowledgement(kind=Ack.CLOSED, channels=(0,)).serialize(1)
    assert not peer.closed


# Every row of the table of replies in docs/protocols/relink-wire.md.


@pytest.mark.parametrize("require", [False, True])
@pytest.mark.parametrize("case", ["zero", "zero-epoch", "other-epoch", "unknown", "match", "name", "size", "identity"])
def test_each_handshake_gets_its_specified_reply(make_server: Any, case: str, require: bool, tmp_path: Path) -> None:
    server = make_server()
    first = server.linked()
    first.leave()
    epoch, id_ = first.link.epoch, first.link.id
    asked = {
        "zero": (0, 0),
        "zero-epoch": (0, id_),
        "other-epoch": (epoch + 1, id_),
        "unknown": (epoch, id_ + 1),
    }.get(case, (epoch, id_))
    name = "publish:other" if case == "name" else "publish:s"
    size = 2 if case == "size" else 1
    hello = Hello(terms=Terms(endpoint=name, connector_size=size), require=require, epoch=asked[0], link_id=asked[1])
    certificate = shown(tmp_path, "other") if case == "identity" else None
    old = first.link if case == "match" else None
    peer = server.connect(name, hello=hello, old=old, certificate=certificate, connector_size=size)
    found = peer.talk()
    if case == "match":
        assert (found[0].resumed, peer.link.id) == (True, id_)
    elif require:
        assert isinstance(found[0], LinkUnknown)
        assert peer.closed
    else:
        assert (found[0].resumed, peer.link.epoch) == (False, epoch)
        assert peer.link.id != id_
    if case != "match":
        intact = server.linked(old=first.link)
        assert intact.events[0].resumed, "the requested link is unchanged"


@pytest.mark.parametrize(
    "name",
    [b"", b"publish", b"publish:", b"subscribe:", b"other:s", b"subscribe:s@" + b"9" * 16, b"publish:\xff"],
)
def test_connection_for_an_unknown_endpoint_is_closed_without_a_reply(make_server: Any, name: bytes) -> None:
    peer = make_server().connect()
    head = bytes([len(name)]) + name + bytes(3)
    peer.say(pack_version(0) + head + bytes(-len(head) % 8) + bytes(16))
    assert peer.closed
    assert peer.transport.value() == bytes(8), "only the version was sent"


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("publish:s", {"listener_transactions": True}),
        ("subscribe:s", {"connector_transactions": True}),
        ("subscribe:s", {"listener_transactions": True}),
    ],
)
def test_unsupported_transactions_are_refused(make_server: Any, name: str, terms: Any) -> None:
    server = make_server()
    peer = server.connect(name, **terms)
    peer.talk()
    assert peer.closed
    assert server.count("transactions-unsupported") == 1


def test_reply_to_every_version_is_version_0(make_server: Any) -> None:
    server = make_server(max_per_host="256")
    for version in range(256):
        peer = server.connect()
        peer.say(pack_version(version))
        assert peer.transport.value() == bytes(8)


# Threats.


def test_slow_handshake_times_out(make_server: Any) -> None:
    server = make_server()
    peer = server.connect()
    server.clock.advance(9.9)
    assert not peer.closed
    server.clock.advance(0.1)
    assert peer.closed
    assert server.count("handshake-timeout") == 1


@pytest.mark.slow
def test_one_address_can_resume_a_thousand_links(make_server: Any) -> None:
    """Many clients behind one NAT lose their connections together, or in an orderly stop and restart."""
    server = make_server(max_per_host="2000")
    peers = [server.used(b"x") for _ in range(1_000)]
    for stopped in (False, True):
        for peer in peers:
            peer.leave()
        if stopped:
            server.restart()
        peers = [server.linked(old=peer.link) for peer in peers]
        assert all(peer.events[0].resumed for peer in peers)
    assert server.count("links-displaced") == 0


def test_link_of_an_idle_subscriber_is_kept(make_server: Any) -> None:
    """A subscriber without records that has answered a ping keeps its link in an outage of four minutes."""
    server = make_server()
    peer = server.linked("subscribe:s")
    peer.leave()
    server.clock.pump([1.0] * 240)
    server.publish("s", b"while it was away")
    again = server.linked(old=peer.link)
    assert again.events[0].resumed
    (received,) = (event for event in again.events if isinstance(event, events.Received))
    assert list(received.messages) == [(b"while it was away",)]


def test_many_peers_with_lost_links_get_new_links(make_server: Any) -> None:
    """Many peers of one address whose links were lost are not mistaken for an attacker who guesses ids."""
    server = make_server(max_per_host="2000")
    epoch = server.registry.epoch
    for number in range(1_000):
        hello = Hello(terms=Terms(endpoint="publish:s"), epoch=epoch, link_id=100_000 + number)
        found = server.linked(hello=hello).events
        assert [type(event) for event in found] == [Linked]
        assert not found[0].resumed
    assert server.count("links-unknown") == 1_000


def test_resume_with_other_handshake_parameters_is_counted_and_does_not_change_the_link(
    make_server: Any, log_lines: list[str]
) -> None:
    server = make_server()
    victim = server.linked(connector_size=2)
    for _ in range(20):
        hello = Hello(terms=Terms(endpoint="publish:s"), epoch=victim.link.epoch, link_id=victim.link.id)
        thief = server.linked(hello=hello, host="10.0.0.9")
        assert thief.link.id != victim.link.id
    assert server.count("resumes-mismatched") == 20
    assert [line for line in log_lines if "resumes-mismatched from 10.0.0.9: link" in line]
    assert kinds(victim.publish(b"x")) == ["Consumed"]


def test_too_large_transaction_can_be_rolled_back(make_server: Any) -> None:
    server = make_server(backlog=3)
    peer = server.used(*[b"x"] * 7, connector_transactions=True)
    peer.link.decide(0, Op.ROLLBACK)
    assert peer.talk() == [events.Consumed(channel=0, first=0, last=6)]
    assert server.count("transactions-too-large") == 0


def test_reading_stops_while_the_peer_does_not_read(make_server: Any) -> None:
    server = make_server()
    peer = server.linked()
    peer.say(PING.serialize() * 3)
    assert peer.transport.value() == bytes.fromhex("4000000000000000") * 3
    peer.protocol.pauseProducing()
    assert peer.transport.producerState == "paused"
    peer.protocol.resumeProducing()
    assert peer.transport.producerState == "producing"


def test_silent_peer_is_pinged_then_dropped(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    server.clock.pump([1.0] * 15)
    assert peer.transport.value() == PING.serialize()
    server.clock.pump([1.0] * 30)
    assert peer.transport.aborted
    assert server.count("silent-peer") == 1
    assert peer.reconnect().events[0].resumed, "the link is kept"


def test_bytes_before_the_reply_are_kept(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.connect()
    peer.session.data_to_send()
    hello = Hello(terms=Terms(endpoint="publish:s", connector_size=1)).serialize()
    early = Message(channels=(0,), parts=(b"early",)).serialize(1)
    peer.say(pack_version(0) + hello + early)
    server.journal.commit()
    server.clock.advance(0)
    server.journal.commit()
    assert server.payloads() == [b"early"]


def test_link_cannot_be_resumed_with_another_certificate(make_server: Any, tmp_path: Path) -> None:
    server = make_server()
    mine = shown(tmp_path, "me")
    peer = server.linked(certificate=mine)
    peer.leave()
    stranger = server.linked(old=None, hello=Hello(terms=peer.link.terms, epoch=peer.link.epoch, link_id=peer.link.id))
    assert not stranger.events[0].resumed
    assert server.linked(old=peer.link, certificate=mine).events[0].resumed


def test_no_link_is_made_when_the_journal_fails(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.connect()
    peer.talk()
    server.journal.enter(JournalState.FAILED, "broken")
    server.clock.advance(0)
    assert peer.closed
    assert peer.session.link is None
    assert isinstance(server.journal, MemoryJournal)


def test_nothing_is_sent_after_a_protocol_violation_and_other_links_are_kept(make_server: Any) -> None:
    server = make_server()
    bystander, peer = server.linked(), server.linked()
    peer.say(bytes([0xA0]) + bytes(7))
    assert peer.transport.value() == b""
    assert Broken.__name__ not in kinds(peer.events)
    assert kinds(bystander.publish(b"y")) == ["Consumed"]


def test_links_survive_an_orderly_stop(make_server: Any) -> None:
    server = make_server()
    peer = server.used(b"x")
    server.factory.drain()
    assert peer.closed
    peer.leave()
    server.restart()
    assert server.linked(old=peer.link).events[0].resumed


def test_newest_connection_gets_the_link(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.linked_durably()
    peer.publish(b"x")
    peer.session.receive_eof()
    second, third = server.connect(old=peer.link), None
    second.protocol.dataReceived(b"".join(second.session.data_to_send()) + peer_hello(peer))
    third = server.connect(old=peer.link)
    third.protocol.dataReceived(b"".join(third.session.data_to_send()) + peer_hello(peer))
    assert second.transport.aborted
    second.leave()
    server.journal.commit()
    server.clock.advance(0)
    third.session.receive_data(third.transport.value())
    assert third.session.linked, "the second connection waited, too, and must not take its turn"
    assert third.link is peer.link


def peer_hello(peer: Any) -> bytes:
    """Return the second transmission of the connector."""
    return Hello(terms=peer.link.terms, epoch=peer.link.epoch, link_id=peer.link.id).serialize()


def test_link_of_a_lost_connection_is_written_and_expires(make_server: Any) -> None:
    server = make_server(auto=False)
    peer = server.connect()
    peer.talk()
    peer.leave()
    server.journal.commit()
    assert len(server.registry.entries) == 1
    server.clock.advance(10)
    assert not server.registry.entries


def test_unexpected_error_loses_no_message(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, logged_errors: Any
) -> None:
    server = make_server()
    peer = server.linked()
    send(peer, b"x")
    with monkeypatch.context() as broken:
        broken.setattr(Sequencer, "number", Mock(side_effect=ZeroDivisionError))
        peer.talk()
    assert peer.transport.aborted
    again = peer.reconnect()
    assert again.events[0].resumed
    assert server.payloads() == [b"x"]
    assert len(logged_errors.take()) == 1


def test_new_streams_are_charged_to_the_peer(make_server: Any) -> None:
    server = make_server(limits=PeerLimits(streams=2))
    for name in ("publish:a", "publish:b"):
        peer = server.used(b"x", name=name)
        assert server.payloads(name.removeprefix("publish:")) == [b"x"]
    peer = server.used(b"x", name="publish:c")
    assert peer.closed
    assert server.count("TooManyStreamsFromPeer") == 1
    peer.leave()
    assert server.payloads("c") == []
    server.clock.advance(1)
    again = server.linked(old=peer.link)
    again.talk()
    assert not again.events[0].resumed
    assert server.payloads("c") == []
    server.used(b"x", name="publish:d", host="127.0.0.9")
    assert server.payloads("d") == [b"x"]


def test_forbidden_new_stream_ends_the_link(make_server: Any) -> None:
    server = make_server(rules=StreamRules((StreamRule(names=("closed",), new_streams=False),)))
    peer = server.used(b"x", name="publish:closed")
    assert peer.closed
    assert server.count("NewStreamForbidden") == 1
    assert server.payloads("closed") == []
    again = peer.reconnect()
    assert not again.events[0].resumed, "a resumed link would send the same messages again, and be refused again"
    server.used(b"x", name="publish:open")
    assert server.payloads("open") == [b"x"]


def test_subscription_beyond_the_limit_of_an_address_is_refused(make_server: Any) -> None:
    server = make_server(limits=PeerLimits(subscriptions=1))
    first = server.linked("subscribe:s")
    second = server.linked("subscribe:t")
    assert (first.closed, second.closed) == (False, True)
    assert server.count("TooManySubscriptions") == 1
    first.leave()
    assert not server.linked("subscribe:t").closed


def test_access_policy_applies_to_new_links(make_server: Any) -> None:
    server = make_server()
    server.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "s", "subscribe": "t"}]}))
    assert server.linked("publish:s").link is not None
    assert server.linked("subscribe:t").link is not None
    for name in ("publish:t", "subscribe:s"):
        peer = server.connect(name)
        peer.talk()
        assert peer.transport.disconnecting
    assert server.count("Forbidden") == 2


def test_publisher_loses_its_link_when_the_policy_changes(make_server: Any) -> None:
    server = make_server()
    peer = server.linked("publish:s")
    server.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "subscribe": "s"}]}))
    peer.publish(b"x")
    assert peer.transport.disconnecting
    assert server.broker.bounds("s") == (1, 0), "the message was not written"
    assert server.count("Forbidden") == 1
    assert not server.registry.entries


def test_subscriber_is_disconnected_when_the_policy_changes(make_server: Any) -> None:
    server = make_server()
    peer = server.linked("subscribe:s")
    server.broker.guard.change(parse({"allow": [{"network": "0.0.0.0/0", "publish": "s"}]}))
    peer.talk()
    assert peer.transport.disconnecting


def test_factory_alone_recovers_its_links_when_it_begins_to_listen(make_server: Any) -> None:
    server = make_server(auto=False)
    server.registry.close()
    server.factory = RelinkFactory(server.broker, reactor=server.clock)
    server.factory.doStart()
    peer = server.linked()
    assert not peer.session.linked, "the links are not recovered yet"
    while not peer.session.linked:
        server.journal.commit()
        peer.talk()
    peer.leave()
    server.factory.doStop()
    server.factory.doStart()
    server.journal.commit()
    again = server.linked(old=peer.link)
    assert again.link is peer.link, "the link was recovered from the factory's own stream"
    server.factory.doStop()
