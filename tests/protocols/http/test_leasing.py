"""Shared subscriptions over HTTP: a client that knows docs/protocols/http.md only."""

from __future__ import annotations

from typing import Any

import pytest

from fyrehose.broker.policy import parse
from fyrehose.errors import Unreplicated
from fyrehose.interfaces import JournalState
from fyrehose.records import Run
from fyrehose.standing import ServerRole, Standing
from fyrehose.testing import MemoryJournal
from tests.doubles.http_world import HttpPeer, HttpWorld


class World(HttpWorld):
    """A server whose stream "orders" has ten records."""

    def __init__(self, policy: Any = None, journal: MemoryJournal | None = None, **settings: Any) -> None:
        super().__init__(policy, journal, **settings)
        if journal is None:
            self.add(10)

    def restarted(self) -> World:
        self.broker.table.close()
        return World(journal=self.journal)

    def add(self, count: int, stream: str = "orders") -> None:
        last = self.broker.bounds(stream)[1]
        self.publish(*(b"%d" % (last + each + 1) for each in range(count)), stream=stream)

    def create(self, **fields: Any) -> tuple[int, Any]:
        place = {} if "match" in fields else {"stream": "orders"}
        return self.ask("PUT /subscriptions/work", {**place, "shared": True, **fields})

    def lease(self, most: int = 1, consumer: str = "w1", **fields: Any) -> list[Any]:
        status, answer = self.ask("POST /subscriptions/work/lease", {"consumer": consumer, "most": most, **fields})
        assert status == 200, answer
        found: list[Any] = answer["records"]
        return found

    def settle(self, **fields: Any) -> tuple[int, Any]:
        return self.ask("POST /subscriptions/work/settle", fields)

    def show(self) -> Any:
        return self.ask("GET /subscriptions/work")[1]

    def payloads(self, stream: str) -> list[bytes]:
        return [record.payload for run in self.journal.read(stream, 1, 1 << 20) for record in run.records()]


def shared(**fields: Any) -> World:
    """Return a world with a shared subscription of its stream, with the options *fields*."""
    world = World()
    assert world.create(**fields)[0] == 200
    return world


def waiting(wait: float = 30, **fields: Any) -> tuple[World, HttpPeer]:
    """Return a world with a subscription that has no record yet, and a worker that waits for one."""
    world = shared(**fields, **{"from": 11})
    peer = world.say("POST /subscriptions/work/lease", {"consumer": "w1", "wait": wait})
    assert peer.hear() == b""
    return world, peer


@pytest.mark.parametrize(
    ("rules", "size", "status"),
    [
        ({"subscribe": "other"}, (64 << 10) + 1, 401),
        ({"consume": "orders"}, 1 << 20, None),
        ({"consume": "orders"}, (1 << 20) + 1, 413),
        ({"consume": "orders", "publish": "results"}, 16 << 20, None),
        ({"consume": "orders", "publish": "results"}, (16 << 20) + 1, 413),
    ],
)
def test_body_of_a_settling_is_limited_by_the_rights_of_the_peer(
    rules: dict[str, str], size: int, status: int | None
) -> None:
    world = shared()
    world.broker.guard.change(parse({"allow": [{"network": "127.0.0.0/8", **rules}]}))
    head = "POST /subscriptions/work/settle HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    peer = world.peer()
    peer.send(f"{head}Content-Length: {size}\r\n\r\n".encode())
    said = peer.hear()
    assert said.startswith(b"HTTP/1.1 %d " % (100 if status is None else status))


def test_chunked_body_of_a_settling_is_limited_by_the_rights_of_the_peer() -> None:
    world = shared()
    world.broker.guard.change(parse({"allow": [{"network": "127.0.0.0/8", "consume": "orders"}]}))
    peer, piece = world.peer(), b"10000\r\n" + b" " * 65_536 + b"\r\n"
    peer.send(b"POST /subscriptions/work/settle HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(16):
        peer.send(piece)
        assert peer.hear() == b""
    peer.send(piece)
    assert peer.hear().startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "body",
    [
        rb'{"reject": [[1, "1.1", {"why": "\ud800"}]]}',
        rb'{"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "x", "content_type": "\ud800"}]}',
        rb'{"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "x", "content_type": "a\u0000b"}]}',
        rb'{"done": [[1, "1.1"]], "publish": [{"stream": "\udfff", "payload": "x"}]}',
        rb'{"done": [[1, "1.1"]], "publish": [{"stream": "r", "payload": "\ud800"}]}',
        rb'{"done": [[1, "1.1"]], "consumer": "\ud800"}',
        rb'{"done": [[1, "1.1"]], "\ud800": 1}',
        b'{"reject": [[1, "1.1", {"why": "' + "é".encode() * 128 + b'"}]]}',
    ],
)
def test_text_that_cannot_be_stored_is_refused_where_it_enters(body: bytes) -> None:
    world = shared()
    world.lease()
    peer = world.peer()
    head = "POST /subscriptions/work/settle HTTP/1.1\r\nHost: localhost\r\n"
    peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert peer.hear().startswith(b"HTTP/1.1 400 ")
    assert (world.show()["in_flight"], world.broker.exists("r")) == (1, False), "nothing of the request was done"


def items(records: list[Any]) -> list[list[Any]]:
    return [[record["seq"], record["token"]] for record in records]


def test_workers_get_different_records_and_settle_them() -> None:
    world = World()
    status, shown = world.create()
    assert (status, shown["kind"], shown["lag"]) == (200, "shared", 10)
    mine, other = world.lease(3), world.lease(3, "w2")
    assert [record["seq"] for record in mine + other] == [1, 2, 3, 4, 5, 6]
    assert mine[0] == {**mine[0], "token": "1.1", "failures": 0, "stream": "orders", "payload": "1"}
    assert world.settle(done=items(mine)) == (200, {"refused": [], "settled": [[1, 3]], "extended": []})
    assert world.settle(done=items(mine)[:1])[1]["refused"] == [{"seq": 1, "why": "final"}]
    shown = world.show()
    assert (shown["settled_total"], shown["in_flight"], shown["lag"], shown["floor"]) == (3, 3, 4, {"orders": 3})
    assert [lease["consumer"] for lease in shown["leases"]] == ["w2"] * 3


def test_exclusive_and_shared_subscriptions_cannot_have_the_same_name() -> None:
    world = World()
    world.ask("GET /streams/orders?subscription=work")
    assert world.create()[0] == 409
    world.ask("DELETE /subscriptions/work")
    assert world.create()[0] == 200
    status, refusal = world.ask("GET /streams/orders?subscription=work")
    assert (status, "is shared" in refusal["error"]) == (409, True)
    assert world.ask("POST /subscriptions/work/ack", {"seq": 3})[0] == 409


def test_dead_letters_have_their_reason_even_after_a_restart_and_a_checkpoint() -> None:
    world = shared(limit=1, dead="orders.dead")
    world.settle(failed=items(world.lease()))
    world.settle(reject=[[*items(world.lease())[0], {"why": "no address"}]])
    letters = world.show()["dead_letters"]
    assert [(each["seq"], each["failures"], each["why"]) for each in letters] == [(1, 1, "limit"), (2, 1, "no address")]
    assert all(each["stream"] == "orders" and each["time"] > 0 for each in letters)
    assert world.restarted().show()["dead_letters"] == letters
    world.journal.keeper.sealed = True
    world.clock.advance(1)
    world.journal.forget(".subscriptions", world.broker.table.stream.checkpoint)
    assert world.restarted().show()["dead_letters"] == letters


def dead_letters() -> World:
    world = shared(dead="orders.dead")
    world.settle(reject=[[*item, {"why": "no"}] for item in items(world.lease(3))])
    return world


def test_dead_letters_are_published_again_once() -> None:
    world = dead_letters()
    assert world.ask("POST /subscriptions/work/redrive", {}) == (200, {"redriven": 3, "left": 0})
    assert world.payloads("orders")[10:] == [b"1", b"2", b"3"]
    (again, *_) = world.journal.read("orders", 11, 1)
    first = next(again.records())
    assert (first.producer, first.producer_seq) == ("orders", 1), "they say where they come from"
    assert world.ask("POST /subscriptions/work/redrive", {}) == (200, {"redriven": 0, "left": 0})
    assert world.restarted().ask("POST /subscriptions/work/redrive", {}) == (200, {"redriven": 0, "left": 0})
    world.journal.keeper.sealed = True
    world.clock.advance(1)
    world.journal.forget(".subscriptions", world.broker.table.stream.checkpoint)
    again_started = world.restarted()
    assert again_started.ask("POST /subscriptions/work/redrive", {}) == (200, {"redriven": 0, "left": 0})


def test_a_redrive_continues_where_the_last_one_ended() -> None:
    world = dead_letters()
    world.broker.table.most_redriven = 2
    assert world.ask("POST /subscriptions/work/redrive", {})[1] == {"redriven": 2, "left": 1}
    assert world.ask("POST /subscriptions/work/redrive", {})[1] == {"redriven": 1, "left": 0}
    assert world.payloads("orders")[10:] == [b"1", b"2", b"3"]


def test_redrive_that_cannot_be_written_changes_nothing() -> None:
    world = dead_letters()
    world.journal.enter(JournalState.READ_ONLY, "full")
    assert world.ask("POST /subscriptions/work/redrive", {})[0] == 503
    world.journal.enter(JournalState.WRITABLE, "room")
    assert world.ask("POST /subscriptions/work/redrive", {})[1] == {"redriven": 3, "left": 0}


def test_only_dead_letters_of_the_subscription_are_published_again() -> None:
    world = dead_letters()
    world.broker.publish([Run.of("orders.dead", [b"forged"], source="http", producer="orders/1")])
    world.ask("PUT /subscriptions/other", {"stream": "orders", "shared": True, "dead": "orders.dead"})
    status, refusal = world.ask("POST /subscriptions/work/redrive", {})
    assert (status, "'other' has its dead letters of stream 'orders'" in refusal["error"]) == (409, True)
    world.ask("DELETE /subscriptions/other")
    assert world.ask("POST /subscriptions/work/redrive", {})[1] == {"redriven": 3, "left": 0}
    assert b"forged" not in world.payloads("orders")


def test_a_subscription_that_keeps_no_dead_letters_has_none_to_publish() -> None:
    world = shared()
    assert world.ask("POST /subscriptions/work/redrive", {})[0] == 409
    assert world.ask("POST /subscriptions/work/redrive", {"all": True})[0] == 400


def test_a_redrive_needs_the_right_to_publish() -> None:
    world = World([{"network": "127.0.0.1", "subscribe": "*", "consume": "*", "publish": "orders.dead"}])
    world.create(dead="orders.dead")
    world.settle(reject=[[*item, {"why": "no"}] for item in items(world.lease(3))])
    assert world.ask("POST /subscriptions/work/redrive", {})[0] == 401
    assert len(world.payloads("orders")) == 10


def test_subscription_shows_the_age_of_its_oldest_unsettled_record() -> None:
    world = shared()
    world.broker.table.now = lambda: 5_000_000
    assert world.show()["oldest_unsettled_seconds"] is None, "not looked up yet"
    world.clock.advance(1)
    assert world.show()["oldest_unsettled_seconds"] > 0
    world.settle(done=items(world.lease(10)))
    assert world.show()["oldest_unsettled_seconds"] == 0


def test_results_are_published_with_the_settling_or_not_at_all() -> None:
    world = shared()
    records = items(world.lease(2))
    results = [{"stream": "invoices", "payload": "one"}, {"stream": "invoices", "payload_base64": "dHdv"}]
    assert world.settle(done=records, publish=results)[0] == 200
    status, refusal = world.settle(done=[*records, *items(world.lease())], publish=results)
    assert (status, refusal["refused"]) == (409, [{"seq": 1, "why": "final"}, {"seq": 2, "why": "final"}])
    assert world.payloads("invoices") == [b"one", b"two"]
    (run, *_) = world.journal.read("invoices", 1, 1 << 20)
    assert (run.source, run.producer) == ("http", "127.0.0.1:5000")
    assert world.show()["settled_total"] == 2


def test_pattern_that_costs_too_much_is_refused_after_the_rights() -> None:
    stars = "*a" * 50
    status, answer = World().create(match=stars)
    assert (status, "50 stars" in answer["error"]) == (400, True)
    assert World([{"network": "127.0.0.1", "consume": "orders"}]).create(match=stars)[0] == 401


def test_server_that_may_not_lead_any_more_does_not_say_that_a_stream_is_unknown() -> None:
    world = shared(match="orders*")
    assert world.settle(done=[["orders.new", 1, "1.1"]])[0] == 409
    world.journal.cluster = Standing(ServerRole.LEADER, leads_alone=False)
    assert world.settle(done=[["orders.new", 1, "1.1"]])[0] == 503, "another server may have created it"


def test_settling_that_waits_when_the_journal_fails_has_no_answer() -> None:
    world = shared()
    record = items(world.lease())
    world.journal.auto = False
    peer = world.say("POST /subscriptions/work/settle", {"done": record})
    world.journal.enter(JournalState.FAILED, "the disk failed")
    assert (peer.hear(), peer.transport.aborted) == (b"", True)


def test_answer_says_how_long_the_server_waited_so_that_a_worker_knows_when_its_lease_began() -> None:
    world, peer = waiting(20, lease=10)
    world.clock.advance(15.0629)
    world.add(1)
    status, answer = peer.answer()
    assert (status, answer["waited"], [record["seq"] for record in answer["records"]]) == (200, 15.062, [11])
    (lease,) = world.show()["leases"]
    assert lease["ends_in"] == 10


def test_disconnected_client_is_leased_no_record() -> None:
    world, peer = waiting()
    peer.leave()
    world.add(1)
    assert world.show()["in_flight"] == 0
    assert [each["seq"] for each in world.lease(1, "w2")] == [11]


@pytest.mark.parametrize(("wait", "waited"), [(30, 30), (300, 50)])
def test_a_request_waits_as_long_as_it_says_but_no_longer_than_proxies_do(wait: float, waited: float) -> None:
    world, peer = waiting(wait)
    world.clock.advance(waited - 1)
    assert peer.hear() == b""
    world.clock.advance(1)
    assert peer.answer() == (200, {"lease": 30, "waited": waited, "records": []})


def test_deleting_a_subscription_answers_waiting_requests_with_410() -> None:
    world, peer = waiting()
    assert world.ask("DELETE /subscriptions/work")[0] == 204
    assert peer.answer()[0] == 410
    assert world.ask("POST /subscriptions/work/lease", {"consumer": "w1"})[0] == 404
    assert world.ask("GET /subscriptions/work")[0] == 404


def test_a_repeated_request_gets_its_leases_although_others_wait_for_records() -> None:
    world = shared()
    first = world.lease(10, request=7)
    other = world.say("POST /subscriptions/work/lease", {"consumer": "w2", "wait": 30})
    assert other.hear() == b""
    assert world.lease(10, request=7) == first


def test_all_that_a_worker_has_is_released_at_its_request() -> None:
    world = shared()
    world.lease(2)
    assert world.ask("POST /subscriptions/work/release", {"consumer": "w1"}) == (200, {"released": 2})
    assert [each["seq"] for each in world.lease(3, "w2")] == [1, 2, 3]


def test_a_paused_subscription_leases_nothing() -> None:
    world = shared()
    record = items(world.lease())
    assert world.ask("POST /subscriptions/work/pause", {"paused": True})[1]["paused"] is True
    assert world.lease() == []
    assert world.settle(done=record)[1]["settled"] == [1]
    again = world.restarted()
    assert again.show()["paused"] is True
    again.ask("POST /subscriptions/work/pause", {"paused": False})
    assert [each["seq"] for each in again.lease()] == [2]


def test_pattern_can_be_shared_by_workers() -> None:
    world = World()
    world.add(2, "logs.a")
    world.create(match="logs.*", dead="logs.dead")
    world.add(2, "logs.b")
    records = world.lease(9) + world.lease(9)
    assert sorted((each["stream"], each["seq"]) for each in records) == [
        ("logs.a", 1),
        ("logs.a", 2),
        ("logs.b", 1),
        ("logs.b", 2),
    ]
    done = [[each["stream"], each["seq"], each["token"]] for each in records]
    results = [{"stream": "out", "payload": "x"}]
    assert world.settle(done=done, publish=results)[0] == 200
    assert world.show()["floor"] == {"logs.a": 2, "logs.b": 2}
    assert world.settle(done=[[1, "1.1"]])[0] == 409
    assert world.restarted().show()["floor"] == {"logs.a": 2, "logs.b": 2}


def test_retention_keeps_what_is_not_settled() -> None:
    world = shared()
    world.settle(done=items(world.lease(3)))
    kept = {each.stream: each.seq for each in world.journal.keeper.unread()}
    assert (kept["orders"], kept[".subscriptions"]) == (3, 0)


def test_shared_subscription_needs_the_rights_to_consume_and_publish() -> None:
    world = World([{"network": "127.0.0.1", "subscribe": "*", "consume": "orders"}])
    assert world.create()[0] == 200
    assert world.ask("PUT /subscriptions/x", {"stream": "orders", "shared": True, "dead": "d"})[0] == 401
    assert world.ask("PUT /subscriptions/x", {"stream": "other", "shared": True})[0] == 401
    record = items(world.lease())
    assert world.settle(done=record, publish=[{"stream": "invoices", "payload": "x"}])[0] == 401
    assert world.show()["in_flight"] == 1, "nothing was done"
    assert world.settle(done=record)[1]["settled"] == [1]


def test_number_of_shared_subscriptions_is_limited() -> None:
    world = World(named_subscriptions=4)
    for name, status in (("a", 200), ("b", 200), ("c", 507)):
        assert world.ask(f"PUT /subscriptions/{name}", {"stream": "orders", "shared": True})[0] == status


def test_a_request_that_waits_is_answered_when_the_server_closes() -> None:
    _, peer = waiting()
    peer.protocol.finish()
    assert peer.answer() == (200, {"lease": 30, "waited": 0, "records": []})


#: Requests about one subscription.
OF_ONE = [
    "GET /subscriptions/work",
    "DELETE /subscriptions/work",
    "POST /subscriptions/work/lease",
    "POST /subscriptions/work/settle",
    "POST /subscriptions/work/pause",
]
BODIES = {"lease": {"consumer": "w1"}, "settle": {"done": [[1, "1.1"]]}, "pause": {"paused": True}}


@pytest.mark.parametrize("line", OF_ONE)
def test_follower_does_not_say_that_a_subscription_does_not_exist(line: str) -> None:
    """A subscription that was created after this server began to follow is known to the leader only."""
    world = World()
    world.journal.follow("10.0.0.1:8117")
    world.broker.open()
    status, answer = world.ask(line, BODIES.get(line.rpartition("/")[2]))
    assert (status, "another server leads" in answer["error"]) == (503, True)


@pytest.mark.parametrize("line", OF_ONE)
def test_server_without_the_shared_log_does_not_say_that_a_subscription_does_not_exist(line: str) -> None:
    """It has just started, and has not read what the cluster has done meanwhile."""
    world = World()
    world.journal.cluster = Standing(ServerRole.LEADER, refusal=Unreplicated("no answer from the shared log"))
    world.journal.enter(JournalState.READ_ONLY, "no answer from the shared log")
    status, answer = world.ask(line, BODIES.get(line.rpartition("/")[2]))
    assert (status, "no answer" in answer["error"]) == (503, True)
