"""Links of workers of a shared subscription: ``consumed`` settles, messages return, reject, extend and publish."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure

from fyrehose.broker.guard import Guard
from fyrehose.broker.policy import parse
from fyrehose.interfaces import JournalState
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.messages import CONTENT_TYPE, join
from fyrehose.protocols.relink.names import share_name
from fyrehose.protocols.relink.session import LinkUnknown
from fyrehose.protocols.relink.working import HEAD
from fyrehose.subscriptions.progress import ShareOptions


class World:
    """A server whose stream "s" has records, and a shared subscription "work" of it."""

    def __init__(self, make_server: Any, records: int = 5, **options: Any) -> None:
        self.server = make_server()
        self.options = ShareOptions(**{"stream": "s", "lease": 10, "dead": "dead", **options})
        self.server.broker.named.sharing.create("work", self.options, 1)
        self.publish(*[b"%d" % each for each in range(1, records + 1)])

    @property
    def shared(self) -> Any:
        return self.server.broker.named.sharing.find("work")

    def publish(self, *payloads: bytes, stream: str = "s") -> None:
        if payloads:
            self.server.publish(stream, *payloads)

    def worker(self, host: str = "127.0.0.1", size: int = 1, **terms: Any) -> Any:
        """Return a worker that has what it can get."""
        peer = self.server.linked(share_name(self.options.stream, "work", **terms), listener_size=size, host=host)
        self.settle(peer)
        return peer

    def settle(self, *peers: Any) -> None:
        for _ in range(3):
            for peer in peers:
                for event in peer.talk():
                    if isinstance(event, events.Finished):
                        peer.link.forget(event.channel)

    def show(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.broker.named.sharing.show(self.shared)
        return found

    def counts(self) -> tuple[int, int, int]:
        shown = self.show()
        return shown["settled_total"], shown["dead_total"], shown["in_flight"]

    def say(self, peer: Any, channel: int = 0, **request: Any) -> int:
        """Send a request, and return the number of its message."""
        (message,) = peer.link.send((channel,), (json.dumps(request).encode(),))
        self.settle(peer)
        return int(message)

    def consume(self, peer: Any, through: int) -> None:
        peer.link.consume(0, through)
        self.settle(peer)


@pytest.fixture
def world(make_server: Any) -> World:
    return World(make_server)


def heads(peer: Any) -> list[tuple[int, str, int, str]]:
    """Return number, token, failures and stream of each record that the worker got."""
    found = []
    for event in peer.events:
        if isinstance(event, events.Received) and event.channel == 0:
            for head, *_ in event.messages:
                seq, epoch, number, failures, lease = HEAD.unpack_from(head)
                assert lease == 10
                found.append((seq, f"{epoch}.{number}", failures, head[HEAD.size :].decode()))
    return found


def seqs(peer: Any) -> list[int]:
    return [head[0] for head in heads(peer)]


def notices(peer: Any) -> list[Any]:
    return [
        json.loads(b"".join(parts))
        for event in peer.events
        if isinstance(event, events.Received) and event.channel == 1
        for parts in event.messages
    ]


def consumed(peer: Any) -> list[tuple[int, int]]:
    """Return channel and number of the last message that the server has consumed, of each report."""
    return [(event.channel, event.last) for event in peer.events if isinstance(event, events.Consumed)]


def test_first_record_matches_its_golden_bytes(world: World) -> None:
    peer = world.server.connect(share_name("s", "work", consumer="w"), listener_size=1)
    said = b""
    for _ in range(4):
        sent = b"".join(peer.session.data_to_send())
        if sent:
            peer.say(sent)
        world.server.clock.advance(0)
        answer = peer.transport.value()
        peer.transport.clear()
        said += answer
        peer.session.receive_data(answer)
    head = "01 00000000000000 01 00000000000000 01 000000 00 000000 0a 000000"
    packet = f"1102 00 00 1c00 0100 {head} 00000000 31 00000000000000"
    assert bytes.fromhex(packet) in said


def test_workers_get_different_records_and_consuming_settles_them(world: World) -> None:
    first, second = world.worker(most=2), world.worker(most=2, host="127.0.0.2")
    assert heads(first) == [(1, "1.1", 0, ""), (2, "1.1", 0, "")]
    assert seqs(second) == [3, 4]
    world.consume(first, 1)
    assert world.counts() == (2, 0, 3)
    assert seqs(first) == [1, 2, 5]
    world.publish(b"6", b"7")
    world.settle(first, second)
    assert seqs(first) == [1, 2, 5, 6]
    assert (notices(first), notices(second)) == ([], [])


def test_a_worker_has_the_name_that_it_chooses_or_that_of_its_link(world: World) -> None:
    world.worker(most=1, consumer="w1")
    world.worker(most=1)
    label = list(world.server.registry.entries.values())[1].label
    assert {each["consumer"] for each in world.show()["leases"]} == {"w1", label}


def test_record_is_settled_when_its_settlement_is_durable(world: World) -> None:
    worker = world.worker()
    world.server.journal.auto = False
    world.consume(worker, 0)
    assert world.counts()[0] == 0
    world.server.journal.commit()
    assert world.counts()[0] == 1


def test_a_failed_record_comes_again_and_the_request_is_consumed_when_that_is_durable(world: World) -> None:
    worker = world.worker(most=1)
    world.server.journal.auto = False
    message = world.say(worker, failed=[[1, "1.1", {"delay": 3}]])
    assert consumed(worker) == []
    world.server.journal.commit()
    world.server.journal.auto = True
    world.consume(worker, 0)
    assert consumed(worker) == [(0, message)]
    assert world.counts()[0] == 0
    world.server.clock.advance(3)
    world.consume(worker, 1)
    world.server.clock.advance(0.5)
    world.settle(worker)
    assert heads(worker) == [(1, "1.1", 0, ""), (2, "1.1", 0, ""), (1, "1.2", 1, "")]


def test_a_rejected_record_is_a_dead_letter_at_once(world: World) -> None:
    worker = world.worker()
    world.say(worker, reject=[[2, "1.1", {"why": "no address"}]])
    world.consume(worker, 4)
    assert world.counts() == (4, 1, 0)
    assert world.server.payloads("dead") == [b"2"]


def test_extended_lease_does_not_expire_at_its_old_end(world: World) -> None:
    worker, other = world.worker(most=1), world.worker(most=1, host="127.0.0.2")
    for _ in range(4):
        world.server.clock.advance(5)
        world.say(worker, extend=[[1, "1.1"]])
        world.settle(other)
    assert (notices(worker), seqs(worker)) == ([], [1])
    world.consume(worker, 0)
    assert world.counts()[0] == 1


def test_results_are_published_with_the_settling_and_once(world: World) -> None:
    worker = world.worker()
    work = {"done": [[1, "1.1"], [2, "1.1"]], "publish": [{"stream": "r", "payload": "x"}]}
    world.say(worker, **work)
    again = world.say(worker, **work)
    assert world.server.payloads("r") == [b"x"]
    (notice,) = notices(worker)
    assert (notice["channel"], notice["message"]) == (0, again)
    assert notice["refused"] == [{"seq": 1, "why": "final"}, {"seq": 2, "why": "final"}]
    assert "nothing was done" in notice["error"]
    world.consume(worker, 4)
    assert world.counts() == (5, 0, 0)


def test_worker_gets_a_notice_of_lost_leases(world: World) -> None:
    worker = world.worker(most=1)
    world.server.clock.advance(10.5)
    world.server.clock.advance(2)
    other = world.worker(host="127.0.0.2")
    assert 1 in seqs(other)
    world.consume(worker, 0)
    assert notices(worker) == [{"refused": [{"seq": 1, "why": "lease-lost"}]}]
    assert world.show()["late_refused_total"] == 1


def test_a_worker_whose_connection_is_lost_returns_its_records_at_once_as_not_tried(world: World) -> None:
    worker = world.worker()
    world.consume(worker, 1)
    worker.leave()
    assert world.counts() == (2, 0, 0)
    assert world.server.registry.entries == {}
    assert heads(world.worker()) == [(3, "1.2", 0, ""), (4, "1.2", 0, ""), (5, "1.2", 0, "")]


def test_records_of_a_worker_that_may_not_know_that_its_link_is_lost_wait_for_the_end_of_their_leases(
    world: World,
) -> None:
    worker = world.worker()
    worker.protocol.connectionLost(Failure(ConnectionAborted()))
    assert world.counts() == (0, 0, 5)
    world.server.clock.advance(10.5)
    world.server.clock.advance(2)
    assert heads(world.worker())[0] == (1, "1.2", 1, "")


def test_a_lost_link_is_not_resumed(world: World) -> None:
    worker = world.worker()
    worker.leave()
    again = world.server.linked(old=worker.link)
    assert again.link is not worker.link
    again.leave()
    refused = world.server.connect(old=worker.link, require=True)
    refused.talk()
    assert any(isinstance(event, LinkUnknown) for event in refused.events)
    assert world.server.registry.entries == {}


def test_a_worker_uses_the_tokens_of_a_lost_link(world: World) -> None:
    worker = world.worker()
    worker.protocol.connectionLost(Failure(ConnectionAborted()))
    again = world.worker()
    world.say(again, done=[[1, "1.1"]], extend=[[2, "1.1"]])
    assert (world.counts(), notices(again)) == ((1, 0, 4), [])


def test_after_a_restart_a_worker_extends_with_its_token_and_gets_a_new_one(world: World) -> None:
    world.worker()
    world.server.restart()
    again = world.worker()
    message = world.say(again, extend=[[1, "1.1"]])
    assert notices(again) == [{"channel": 0, "message": message, "extended": [{"seq": 1, "token": "2.1"}]}]
    world.say(again, done=[[1, "2.1"], [2, "1.1"]])
    assert world.counts()[0] == 2


def test_a_worker_that_shuts_down_gets_nothing_new_and_settles_what_it_has(world: World) -> None:
    worker = world.worker(most=2)
    worker.link.shutdown()
    world.settle(worker)
    world.consume(worker, 0)
    assert not worker.closed
    assert seqs(worker) == [1, 2]
    world.consume(worker, 1)
    world.settle(worker)
    assert worker.closed
    assert (world.counts(), seqs(worker)) == ((2, 0, 0), [1, 2])
    assert world.server.count("links-ended") == 1


def test_a_worker_that_shuts_down_still_gets_the_notices(world: World) -> None:
    worker = world.worker(most=1)
    world.say(worker, done=[[9, "1.1"]])
    worker.link.close(0)
    world.settle(worker)
    worker.link.shutdown()
    world.settle(worker)
    world.consume(worker, 0)
    worker.link.consume(1, 0)
    world.settle(worker)
    assert worker.closed
    assert notices(worker)[0]["refused"] == [{"seq": 9, "why": "lease-lost"}]


def test_settlements_that_could_not_be_written_are_retried(world: World) -> None:
    worker = world.worker()
    world.server.journal.enter(JournalState.READ_ONLY, "full")
    world.consume(worker, 2)
    message = world.say(worker, failed=[[4, "1.1"]])
    assert world.counts()[0] == 0
    (notice,) = notices(worker)
    assert (notice["message"], notice["retry"], "full" in notice["error"]) == (message, True, True)
    world.server.journal.enter(JournalState.WRITABLE, "room")
    world.server.clock.advance(1)
    world.settle(worker)
    assert world.counts()[0] == 3
    assert not worker.closed


def test_a_subscription_that_is_deleted_ends_its_links(world: World) -> None:
    worker = world.worker(most=5)
    world.server.broker.named.sharing.delete(world.shared)
    world.consume(worker, 0)
    assert worker.closed
    assert world.server.count("subscription-displaced") == 1


def test_an_idle_worker_of_a_subscription_that_is_deleted_ends(world: World) -> None:
    worker = world.worker()
    world.server.broker.named.sharing.delete(world.shared)
    world.settle(worker)
    assert worker.closed


def test_after_a_rewind_records_come_again_with_new_tokens(world: World) -> None:
    worker = world.worker()
    world.server.broker.named.sharing.rewind(world.shared, 0)
    world.consume(worker, 4)
    assert world.counts() == (0, 0, 5)
    world.say(worker, done=[[1, "1.1"]])
    assert notices(worker)[0]["refused"] == [{"seq": 1, "why": "lease-lost"}]
    assert heads(worker)[5:] == [(seq, "2.1", 0, "") for seq in range(1, 6)]


def test_a_paused_subscription_leases_nothing(world: World) -> None:
    world.server.broker.named.sharing.pause(world.shared, True)
    worker = world.worker()
    assert seqs(worker) == []
    world.server.broker.named.sharing.pause(world.shared, False)
    world.settle(worker)
    assert seqs(worker) == [1, 2, 3, 4, 5]


def test_records_of_a_pattern_carry_their_stream(make_server: Any) -> None:
    world = World(make_server, records=0, stream="logs.*", pattern=True)
    world.publish(b"x", stream="logs.a")
    world.publish(b"y", stream="logs.b")
    worker = world.worker()
    assert sorted(heads(worker)) == [(1, "1.1", 0, "logs.a"), (1, "1.1", 0, "logs.b")]
    world.say(worker, done=[["logs.b", 1, "1.1"]])
    world.say(worker, done=[["logs.c", 1, "1.1"]])
    assert "logs.c" in notices(worker)[0]["error"]
    world.consume(worker, 1)
    assert world.counts() == (2, 0, 0)


def test_parts_of_a_record_follow_the_head(make_server: Any) -> None:
    world = World(make_server, records=0)
    world.server.publish("s", join((b"a", b"bc")), content_type=CONTENT_TYPE)
    worker = world.worker()
    ((head, *parts),) = [
        parts for event in worker.events if isinstance(event, events.Received) for parts in event.messages
    ]
    assert (len(head), parts) == (HEAD.size, [b"a", b"bc"])


def test_the_largest_record_fits_with_its_head(make_server: Any) -> None:
    world = World(make_server, records=0)
    world.publish(b"x" * (16 << 20))
    worker = world.server.connect(share_name("s", "work"), listener_size=1)
    worker.session.limits = worker.session.limits.__class__(message_size=(16 << 20) + 320)
    world.settle(worker)
    assert seqs(worker) == [1]


def test_nothing_is_leased_to_a_worker_that_does_not_read(world: World) -> None:
    worker = world.worker(most=5)
    world.consume(worker, 4)
    worker.protocol.pauseProducing()
    world.publish(b"6")
    world.settle(worker)
    assert world.counts() == (5, 0, 0)
    worker.protocol.resumeProducing()
    world.settle(worker)
    assert seqs(worker)[5:] == [6]


@pytest.mark.parametrize("request_", [b"", b"[]", b'{"done": [[1, "x"]]}'])
def test_a_message_that_is_no_request_ends_the_link(world: World, request_: bytes) -> None:
    worker = world.worker(most=2)
    worker.link.send((0,), (json.dumps({"done": [[1, "1.1"]]}).encode(),))
    worker.link.send((0,), (request_,))
    world.settle(worker)
    assert worker.closed
    assert world.server.count("request-invalid") == 1
    assert world.counts()[0] == 1, "what came before it counts"


def test_worker_that_does_not_consume_its_notices_loses_its_link(make_server: Any) -> None:
    world = World(lambda: make_server(window="3"))
    worker = world.worker(most=1)
    for _ in range(3):
        world.say(worker, done=[[9, "1.1"]])
    assert not worker.closed
    world.say(worker, done=[[9, "1.1"]])
    assert worker.closed
    assert world.server.count("notices-unconsumed") == 1


@pytest.mark.parametrize(
    "name",
    [
        "subscribe:s?share",
        "subscribe:s@1?name=work&share",
        "subscribe:s?name=work&share&seq",
        "subscribe:s?name=work&share&takeover",
        "subscribe:s?name=work&most=3",
        "subscribe:s?name=work&share&most=0",
        "subscribe:s?name=work&share&most=x",
        "subscribe:s?name=work&share&consumer=",
    ],
)
def test_options_that_exclude_each_other_are_refused(world: World, name: str) -> None:
    assert world.server.linked(name, listener_size=1).closed
    assert world.server.count("endpoint-unknown") == 1


def test_a_worker_needs_channel_ids_of_the_listener(world: World) -> None:
    assert world.worker(size=0).closed
    assert world.server.count("endpoint-unknown") == 1


def test_subscriptions_of_another_name_stream_or_kind_are_refused(world: World) -> None:
    for name in ("subscribe:s?name=other&share", "subscribe:t?name=work&share"):
        assert world.server.linked(name, listener_size=1).closed
    assert world.server.linked("subscribe:s?name=work").closed, "it is shared"
    assert world.server.count("subscription-refused") == 3
    assert world.server.registry.entries == {}


def test_a_worker_needs_the_rights_to_subscribe_and_to_consume(world: World) -> None:
    for rules in ({"subscribe": "*"}, {"consume": "*"}):
        world.server.broker.guard = Guard(parse({"allow": [{"network": "127.0.0.1", **rules}]}))
        assert world.worker().closed
    rules = {"subscribe": "*", "consume": "*", "publish": "q"}
    world.server.broker.guard = Guard(parse({"allow": [{"network": "127.0.0.1", **rules}]}))
    worker = world.worker()
    world.say(worker, done=[[1, "1.1"]], publish=[{"stream": "r", "payload": "x"}])
    (notice,) = notices(worker)
    assert ("error" in notice, "retry" in notice) == (True, False)
    assert world.counts()[0] == 0
    world.say(worker, done=[[1, "1.1"]], publish=[{"stream": "q", "payload": "x"}])
    assert (world.counts()[0], world.server.payloads("q")) == (1, [b"x"])
