"""The admin listener, without sockets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import formatEvent

from fyrehose.admin.listener import FILES, POLICY, Admin, AdminFactory, AdminService, make_admin
from fyrehose.admin.metrics import Exporter
from fyrehose.admin.plugin import plugin
from fyrehose.admin.settings import AdminSettings
from fyrehose.admin.tail import INTERVAL
from fyrehose.broker.policy import parse
from fyrehose.errors import ConfigError, JournalCorrupt, MissingExtra
from fyrehose.identity import Identity, digest
from fyrehose.interfaces import JournalState
from fyrehose.observe.meters import JournalMeters
from fyrehose.subscriptions.progress import SubscriptionOptions
from fyrehose.testing import ClientSide, Transport

TOKEN = "0123456789abcdef"


@attrs.define(eq=False)
class Browser(ClientSide):
    """A browser that shows the page."""

    def ask(self, path: str, *headers: str, method: str = "GET", host: str = "localhost") -> tuple[int, str, bytes]:
        """Send a request, and return status, head and body of its answer."""
        self.transport.clear()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]
        self.send("\r\n".join(lines).encode())
        head, _, body = self.received().partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode(), body

    def json(self, path: str, *headers: str) -> Any:
        return json.loads(self.ask(path, *headers)[2])

    def events(self) -> list[tuple[str, Any]]:
        """Return the events sent since the last call."""
        return events(self.transport)

    def leave(self) -> None:
        if self.protocol in self.protocol.factory.connections:
            super().leave()


def events(transport: Transport) -> list[tuple[str, Any]]:
    data = transport.value()
    transport.clear()
    found = []
    for block in (event for chunk in data.split(b"\r\n") for event in chunk.split(b"\n\n")):
        if block.startswith(b"event: "):
            name, value = block.decode().split("\n")
            found.append((name.removeprefix("event: "), json.loads(value.removeprefix("data: "))))
    return found


Connect = Callable[..., Browser]


@pytest.fixture
def connect(watched: Any) -> Iterator[Connect]:
    peers: list[Browser] = []

    def connect(token: str | None = None, endpoint: str = "tcp:1:interface=127.0.0.1", **settings: Any) -> Browser:
        made = AdminSettings(**{"refusal_delay": 0.0, **settings})
        admin = Admin(watched.status, token, Exporter(watched.status, 100))
        peers.append(Browser.connect(AdminFactory(admin, made, watched.clock, endpoint), watched.clock))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.leave()


@pytest.mark.parametrize(
    ("path", "kind", "part"),
    [
        ("/", "text/html", b"<title>Fyrehose</title>"),
        ("/page.css", "text/css", b"prefers-color-scheme"),
        ("/page.js", "text/javascript", b"together"),
        *((f"/{name}.js", "text/javascript", b"export") for name in ("chart", "dom", "format", "live", "tail")),
        ("/icon.svg", "image/svg+xml", b"<svg"),
    ],
)
def test_files_of_the_page_are_served(connect: Connect, path: str, kind: str, part: bytes) -> None:
    status, head, body = connect().ask(path)
    assert status == 200
    assert f"Content-Type: {kind}" in head
    assert f"Content-Security-Policy: {POLICY}" in head
    assert part in body


def test_page_never_renders_peer_data_as_markup_and_loads_no_foreign_files(connect: Connect) -> None:
    peer = connect()
    for path in ("/", *(f"/{name}" for name in FILES if name)):
        body = peer.ask(path)[2].replace(b"http://www.w3.org/2000/svg", b"")
        for word in (
            b"innerHTML",
            b"outerHTML",
            b"insertAdjacentHTML",
            b"document.write",
            b"eval(",
            b"://",
            b" style=",
        ):
            assert word not in body, f"{word!r} in {path}"


def test_metrics_are_served(connect: Connect, watched: Any) -> None:
    watched.publish(b"x")
    status, head, body = connect().ask("/metrics")
    assert status == 200
    assert "Content-Type: text/plain; version=0.0.4" in head
    assert b'fyrehose_published_messages_total{protocol="http"} 1.0\n' in body


def test_status_is_filtered_and_limited(connect: Connect, watched: Any) -> None:
    for stream in ("a", "b"):
        watched.publish(b"x", stream=stream)
    peer = connect()
    assert peer.json("/api/status")["streams"]["total"] == 2
    assert [each["name"] for each in peer.json("/api/status?match=B")["streams"]["listed"]] == ["b"]
    assert len(peer.json("/api/status?limit=1")["streams"]["listed"]) == 1


@pytest.mark.parametrize(
    "path", ["streams?page", "streams?limit", "subscribers?page", "subscribers?limit", "status?limit"]
)
@pytest.mark.parametrize("value", ["-1", "x", "10000001", "9" * 9, "%D9%A3"])
def test_invalid_page_or_limit_is_refused(connect: Connect, path: str, value: str) -> None:
    assert connect().ask(f"/api/{path}={value}")[0] == 400
    assert connect().ask(f"/api/{path}={'1001' if 'limit' in path else '10000001'}")[0] == 400


def test_streams_and_subscribers_are_served_in_pages(connect: Connect, watched: Any) -> None:
    for stream in ("a1", "b1", "a2", "a3"):
        watched.publish(b"x", stream=stream)
        watched.subscribe(stream, resumed=False)
    peer = connect()
    said = peer.json("/api/streams?match=a&page=1&limit=2")
    assert [stream["name"] for stream in said["listed"]] == ["a3"]
    assert (said["total"], said["matching"], said["page"]) == (4, 3, 1)
    said = peer.json("/api/subscribers?page=1&limit=3")
    assert [each["stream"] for each in said["listed"]] == ["a3"]
    assert said["total"] == 4
    assert len(peer.json("/api/streams?limit=1000")["listed"]) == 4
    assert len(peer.json("/api/subscribers")["listed"]) == 4


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [(JournalState.WRITABLE, 200, 200), (JournalState.READ_ONLY, 200, 503), (JournalState.FAILED, 503, 503)],
)
def test_health_and_readiness_follow_the_journal_and_need_no_token(
    connect: Connect, watched: Any, state: JournalState, health: int, ready: int
) -> None:
    watched.journal.state = state
    peer = connect(token=TOKEN)
    assert (peer.ask("/health")[0], peer.ask("/ready")[0]) == (health, ready), "without the token"
    assert peer.json("/ready") == {"ok": ready == 200, "journal": state.value, "draining": False}


def test_health_reports_damage_with_status_200(connect: Connect, watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    status = SimpleNamespace(damage=found)
    monkeypatch.setattr("fyrehose.admin.listener.journal_status", lambda broker: status)
    peer = connect(token=TOKEN)
    rest = {"journal": "writable", "draining": False, "stalls": 0, "longest_turn": 0.0}
    assert peer.json("/health") == {"ok": True, **rest}
    found += ["/data/0000000000000000.segment is damaged", "/data/0000000000001000.segment is damaged"]
    assert peer.ask("/health")[0] == 200
    said = {"ok": False, **rest, "damaged_segments": 2}
    assert peer.json("/health") == said, "without names of files, because no token is needed"
    assert peer.json("/ready")["ok"]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (lambda broker: None, {}),
        (lambda broker: [broker.stalls.add(3.26), broker.stalls.add(2.5)], {"stalls": 2, "longest_turn": 3.3}),
        (lambda broker: setattr(broker.journal.meters, "write_began", 110.5), {}),  # it takes less than 2 s
        (lambda broker: setattr(broker.journal.meters, "write_began", 100.0), {"ok": False, "write_age": 12.0}),
    ],
)
def test_health_tells_of_trouble_that_a_restart_would_not_mend_with_status_200(
    connect: Connect, watched: Any, trouble: Callable[[Any], object], said: dict[str, object]
) -> None:
    watched.broker.journal.meters = JournalMeters(seconds=lambda: 112.04)
    trouble(watched.broker)
    peer = connect(token=TOKEN)
    assert peer.ask("/health")[0] == 200
    rest = {"ok": True, "journal": "writable", "draining": False, "stalls": 0, "longest_turn": 0.0}
    assert peer.json("/health") == rest | said
    assert peer.json("/ready")["ok"]


def test_a_draining_server_is_healthy_but_not_ready(connect: Connect, watched: Any) -> None:
    watched.broker.draining = True
    peer = connect(token=TOKEN)
    assert (peer.ask("/health")[0], peer.ask("/ready")[0]) == (200, 503)
    assert peer.json("/ready") == {"ok": False, "journal": "writable", "draining": True}


def test_a_shared_subscription_is_shown_with_its_leases(connect: Connect, watched: Any) -> None:
    watched.publish(b"x", stream="jobs")
    sharing = watched.broker.named
    shared = sharing.create("a.b", SubscriptionOptions(stream="jobs"), 1).result
    sharing.lease(shared, "w1", None, 1, 0)
    found = connect().json("/api/subscriptions/a%2Eb")
    assert (found["in_flight"], found["leases"][0]["consumer"], found["dead_letters"]) == (1, "w1", [])
    assert connect().ask("/api/subscriptions/none")[0] == 404
    watched.broker.table.close()


def test_a_follower_does_not_show_shared_subscriptions(connect: Connect, watched: Any) -> None:
    watched.broker.journal.follow("10.0.0.1:8117")
    watched.broker.open()
    assert connect().ask("/api/subscriptions/a")[0] == 503


@pytest.mark.parametrize(
    "path", ["/page", "/../setup.cfg", "/%2e%2e/x", "/api", "/api/x", "/api/streams/s", "/api/events?tail=", "/x/y"]
)
def test_unknown_path_is_refused(connect: Connect, path: str) -> None:
    status, _, body = connect().ask(path)
    assert status in (400, 404)
    assert json.loads(body)["error"]


def test_methods_that_could_write_are_refused(connect: Connect) -> None:
    status, head, _ = connect().ask("/", method="POST")
    assert status == 405
    assert "Allow: GET, HEAD" in head
    assert connect().ask("/", method="HEAD")[2] == b""


def test_foreign_host_or_origin_is_refused(connect: Connect) -> None:
    """A page of another site whose name resolves to this machine is refused (DNS rebinding)."""
    assert connect().ask("/api/status", host="evil.example:8118")[0] == 421
    assert connect().ask("/api/status", "Origin: http://evil.example")[0] == 403
    assert connect(hosts=("admin.test",)).ask("/api/status", host="admin.test")[0] == 200
    assert connect(endpoint="tcp:1").ask("/api/status", host="anything.example")[0] == 200


def test_configured_token_is_required(connect: Connect) -> None:
    peer = connect(token=TOKEN)
    for path in ("/", "/metrics", "/api/status", "/api/events", "/nothing"):
        status, head, _ = peer.ask(path)
        assert status == 401
        assert 'WWW-Authenticate: Basic realm="fyrehose"' in head
    assert peer.ask("/metrics", "Authorization: Bearer wrong")[0] == 401
    assert peer.ask("/metrics", f"Authorization: Bearer {TOKEN}")[0] == 200
    assert peer.ask("/", "Authorization: Basic YW55Ym9keTowMTIzNDU2Nzg5YWJjZGVm")[0] == 200
    assert peer.protocol.factory.broker.counters.counts["admin", "bad-token"] == 6


def test_events_send_history_and_then_a_status_per_second(connect: Connect, watched: Any) -> None:
    watched.publish(b"x", stream="orders")
    watched.publish(b"x", stream="log")
    watched.pass_time(2)
    peer = connect()
    _, head, body = peer.ask("/api/events?match=log")
    assert "text/event-stream" in head
    peer.transport.write(body)
    (history, samples), (name, status) = peer.events()
    assert (history, name) == ("history", "status")
    assert len(samples) == len(watched.sampler.samples)
    assert samples[0]["published"]["http"][0] > 0
    assert [stream["name"] for stream in status["streams"]["listed"]] == ["log"]
    watched.pass_time(1)
    other = connect()
    other.ask("/api/events?match=orders")
    peer.events()
    watched.pass_time(1.2)
    assert [name for name, _ in peer.events()] == ["sample", "status"]
    assert [stream["name"] for stream in other.events()[1][1]["streams"]["listed"]] == ["orders"]
    other.leave()
    peer.protocol.pauseProducing()
    watched.pass_time(2)
    assert peer.events() == [], "a slow client misses samples"
    peer.protocol.resumeProducing()
    peer.leave()
    watched.pass_time(1)
    assert peer.transport.value() == b""


def test_history_is_served_for_each_span(connect: Connect, watched: Any) -> None:
    watched.publish(*[b"x"] * 1000)
    watched.pass_time(25)
    for span, step, count in (("5min", 1, 25), ("1h", 10, 3), ("24h", 300, 1)):
        status, _, body = connect().ask(f"/api/history?span={span}")
        found = json.loads(body)
        assert (status, found["span"], found["step"]) == (200, span, step)
        assert abs(len(found["samples"]) - count) <= 1
        assert found["samples"][0]["published"]["http"][0] > 0
    status, _, body = connect().ask("/api/history?span=1y")
    assert status == 400
    assert b"5min, 1h, 24h" in body


def tail(peer: Browser, stream: str) -> list[tuple[str, Any]]:
    """Ask for the status and the tail of *stream* in one answer; return the events behind the first status."""
    body = peer.ask(f"/api/events?tail={quote(stream, safe='')}")[2]
    peer.transport.write(body)
    (history, _), (status, _), *found = peer.events()
    assert (history, status) == ("history", "status")
    return found


def test_tail_sends_new_records_beside_the_status(connect: Connect, watched: Any) -> None:
    watched.publish(b"one", stream="a/ä")
    peer = connect()
    ((name, new),) = tail(peer, "a/ä")
    assert (name, new["records"][0]["payload"]) == ("records", "b25l")
    watched.publish(b"two", stream="a/ä")
    watched.clock.advance(INTERVAL)
    assert [len(new["records"]) for _, new in peer.events()] == [1]
    watched.pass_time(1.1)
    assert [name for name, _ in peer.events()] == ["sample", "status"]
    peer.leave()


def policy(watched: Any, *rules: dict[str, Any]) -> None:
    """Replace the access policy."""
    watched.broker.guard.change(parse({"allow": list(rules)}))


def test_tail_obeys_the_policy(connect: Connect, watched: Any) -> None:
    watched.publish(b"secret", stream="payroll")
    watched.publish(b"seen", stream="orders.new")
    policy(watched, {"network": "127.0.0.1", "subscribe": "orders.*"}, {"network": "10.0.0.0/8", "subscribe": "*"})
    peer = connect()
    ((name, said),) = tail(peer, "payroll")
    assert name == "tail-ended"
    assert "admin.token-file" in said["error"]
    watched.pass_time(1.1)
    assert [name for name, _ in peer.events()] == ["sample", "status"], "the status goes on"
    assert [name for name, _ in tail(connect(), "orders.new")] == ["records"]
    assert watched.broker.counters.counts["admin", "Forbidden"] == 1


def test_tail_ends_when_the_policy_forbids_it(connect: Connect, watched: Any) -> None:
    watched.publish(b"one", stream="orders")
    policy(watched, {"network": "127.0.0.1", "subscribe": "orders"})
    peer = connect()
    assert [name for name, _ in tail(peer, "orders")] == ["records"]
    policy(watched, {"network": "127.0.0.1", "subscribe": "other"})
    watched.publish(b"secret", stream="orders")
    watched.clock.advance(INTERVAL)
    ((name, said),) = peer.events()
    assert name == "tail-ended"
    assert said["error"].startswith("127.0.0.1 may not read stream 'orders'")
    watched.publish(b"secret", stream="orders")
    watched.clock.advance(INTERVAL)
    assert peer.events() == []


@pytest.mark.parametrize("path", ["/api/status", "/api/status?match=pay", "/api/streams", "/metrics", "/api/events"])
def test_names_of_streams_obey_the_policy(connect: Connect, watched: Any, path: str) -> None:
    watched.publish(b"x", stream="payroll")
    assert b"payroll" in connect().ask(path)[2]
    policy(watched, {"network": "127.0.0.1", "subscribe": "orders.*"})
    assert b"payroll" not in connect().ask(path)[2]
    assert b"payroll" in connect(token=TOKEN).ask(path, f"Authorization: Bearer {TOKEN}")[2]
    policy(watched, {"network": "127.0.0.1", "subscribe": ["orders.*", "*"]})
    assert b"payroll" in connect().ask(path)[2]
    policy(watched, {"token": f"sha256:{digest(TOKEN)}", "subscribe": "*"})
    assert b"payroll" not in connect().ask(path)[2]
    assert b"payroll" in connect().ask(path, f"Authorization: Bearer {TOKEN}")[2]


def test_filter_reveals_no_hidden_name(connect: Connect, watched: Any) -> None:
    for name in ("payroll", "orders"):
        watched.publish(b"x", stream=name)
    policy(watched, {"network": "127.0.0.1", "subscribe": "nothing"})
    said = [connect().json(f"/api/status?match={match}")["streams"] for match in ("pay", "zzz", "")]
    assert said == [{"total": 2, "matching": 2, "listed": [], "hidden": True}] * 3


def test_status_events_that_clients_share_hide_names_from_restricted_ones(connect: Connect, watched: Any) -> None:
    """Check that a restricted client does not get the cached event of one that may see all names."""
    watched.publish(b"x", stream="payroll")
    policy(watched, {"network": "127.0.0.1", "subscribe": "orders"})
    blind, seeing = connect(), connect()
    blind.ask("/api/events")
    seeing.protocol.admin = blind.protocol.admin
    seeing.protocol.identity = Identity(host="10.0.0.1")
    policy(watched, {"network": "10.0.0.1", "subscribe": "*"})
    seeing.ask("/api/events")
    for _ in range(2):
        watched.clock.pump([0.1] * 11)
        for peer, named in ((blind, False), (seeing, True)):
            assert (b"payroll" in peer.transport.value()) is named
            peer.transport.clear()


def test_tail_ends_at_a_damaged_record(connect: Connect, watched: Any) -> None:
    watched.publish(b"one")

    def damaged(stream: str, start: int) -> None:
        raise JournalCorrupt("damaged")

    watched.journal.before_read = damaged
    peer = connect()
    assert tail(peer, "s") == [("tail-ended", {"error": "damaged"})]
    assert not peer.transport.disconnecting
    peer.leave()


def test_tail_whose_turn_fails_by_a_bug_ends_its_connection_and_no_other(
    connect: Connect, watched: Any, logged_errors: Any
) -> None:
    failing, other = connect(), connect()
    assert tail(failing, "s") == tail(other, "other") == []

    def bug(stream: str, start: int) -> None:
        if stream == "s":
            raise RuntimeError("bug")

    watched.journal.before_read = bug
    watched.publish(b"one")
    watched.publish(b"two", stream="other")
    watched.clock.advance(INTERVAL)
    assert failing.transport.aborted
    ((name, new),) = other.events()
    assert (name, new["records"][0]["payload"]) == ("records", "dHdv")
    (event,) = logged_errors.take()
    said = "admin: serving 127.0.0.1 failed, and its connection is closed; please report this bug"
    assert formatEvent(event) == said
    failing.leave()
    other.leave()


@pytest.mark.parametrize("stops", [True, False], ids=["the server stops", "the browser has disconnected"])
@pytest.mark.parametrize("path", ["/api/events", "/api/events?tail=s"])
def test_event_streams_end_when_one_side_does(connect: Connect, path: str, stops: bool) -> None:
    peer = connect()
    peer.ask(path)
    peer.events()
    drained = peer.protocol.factory.drain() if stops else None
    if not stops:
        peer.protocol.readConnectionLost()
    assert peer.transport.value().endswith(b"0\r\n\r\n")
    ((name, said),) = peer.events()
    assert (name, said["retry"]) == ("ended", True)
    assert peer.transport.disconnecting
    peer.leave()
    assert drained is None or drained.called


def test_head_of_an_event_stream_ends_immediately(connect: Connect) -> None:
    peer = connect()
    assert peer.ask("/api/events", method="HEAD")[2] == b""
    assert peer.ask("/health")[0] == 200


def test_service_samples_while_it_runs(make_watched: Any, log_lines: list[str]) -> None:
    watched, reactor = make_watched(), MemoryReactorClock()
    settings = AdminSettings()
    admin = make_admin(watched.broker, reactor, lambda: 0.0, settings, None)
    service = AdminService(reactor, "tcp:1:interface=127.0.0.1", admin, settings)
    assert not reactor.getDelayedCalls()
    service.startService()
    assert reactor.tcpServers[0][0] == 1
    assert [line for line in log_lines if "page" in line] == ["the page is at http://127.0.0.1:1/"]
    for _ in range(30):
        reactor.advance(0.1)
    assert admin.status.sampler.samples
    service.stopService()
    assert not [call for call in reactor.getDelayedCalls() if call.active()]


def test_reload_reads_the_token_again_and_closes_connections_if_it_has_changed(watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    settings = AdminSettings(token_file=str(path))
    service = plugin.make_service(MemoryReactorClock(), watched.broker, plugin.default_endpoint, settings)

    def accepted(*tokens: str) -> list[bool]:
        found = []
        for token in tokens:
            peer = Browser.connect(service.factory, watched.clock)
            found.append(peer.ask("/api/status", f"Authorization: Bearer {token}")[0] == 200)
            peer.leave()
        return found

    other = "another one, as long"
    assert accepted(TOKEN, other) == [True, False]
    watching = Browser.connect(service.factory, watched.clock)
    watching.ask("/api/events", f"Authorization: Bearer {TOKEN}")
    service.prepare(settings).apply()
    assert not watching.transport.disconnecting, "it is the same"
    path.write_text(other)
    service.prepare(settings).apply()
    assert watching.transport.disconnecting
    watching.leave()
    assert accepted(TOKEN, other) == [False, True]
    path.write_text("short")
    with pytest.raises(ConfigError, match="expected at least"):
        service.prepare(settings).apply()
    assert accepted(TOKEN, other, "short") == [False, True, False]


def test_a_broker_other_than_that_of_the_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="own broker"):
        plugin.make_service(MemoryReactorClock(), object(), plugin.default_endpoint, AdminSettings())  # type: ignore[arg-type]


def test_public_endpoint_without_tls_and_token_is_refused(watched: Any) -> None:
    with pytest.raises(ConfigError, match="TLS"):
        plugin.make_service(MemoryReactorClock(), watched.broker, "tcp:8118", AdminSettings())


def test_missing_prometheus_client_is_reported(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"fyrehose\[admin\]"):
        plugin.make_service(MemoryReactorClock(), watched.broker, plugin.default_endpoint, AdminSettings())
