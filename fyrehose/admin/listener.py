"""The admin listener: serves the page, the metrics, and the state of the server as JSON.

    GET /                           the page, and its style, scripts and icon
    GET /metrics                    metrics for Prometheus
    GET /health                     200, or 503 if the journal has failed; stalls, a disk that does not answer, and
                                    damage that a read found
    GET /ready                      200 while the server accepts messages and is not about to stop, else 503
    GET /ready?for=read             200 while readers find all acknowledged records, else 503
    GET /api/status?match=&limit=   the status as JSON
    GET /api/streams?match=&page=&limit=    all streams in pages, in the order of their creation
    GET /api/subscribers?page=&limit=       all subscribers in pages, in the order of their creation
    GET /api/subscriptions/NAME     a shared subscription, with its leases and its last dead letters
    GET /api/history?span=          the rates of the last 5min, 1h or 24h as JSON
    GET /api/events?match=&tail=    the last minutes, then the status once per second, as server-sent events; with
                                    tail=NAME also the latest records of that stream

If a token is configured, all paths except /health and /ready require it, as ``Bearer`` or, for browsers, as the
password of ``Basic``; the token gives access to everything.  Without a token, which is possible on loopback only, the
access
policy applies: the tail of a stream requires the right to subscribe to it, and names of streams the right to subscribe
to all streams.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, ClassVar, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose import errors
from fyrehose.admin.history import SPANS, Sample
from fyrehose.admin.metrics import CONTENT_TYPE, Exporter
from fyrehose.admin.sampling import Sampler, StreamRates, journal_status
from fyrehose.admin.settings import PROTOCOL, TOKEN_FILE, AdminSettings, check_place
from fyrehose.admin.status import LISTED, Listing, Status
from fyrehose.admin.tail import INTERVAL, StreamTail, as_event
from fyrehose.broker.broker import Broker
from fyrehose.broker.policy import LOOPBACK, OPEN
from fyrehose.file_content import FileContent
from fyrehose.identity import Action, Identity
from fyrehose.interfaces import JournalState, Prepared
from fyrehose.jsontext import dumped
from fyrehose.net.connections import SessionFactory
from fyrehose.net.endpoints import TCPService
from fyrehose.net.lifecycle import Phase
from fyrehose.net.peers import INET
from fyrehose.net.several import place_text
from fyrehose.net.tcp import on
from fyrehose.net.turns import SteppedWork
from fyrehose.observe.meters import LONGEST_WRITE
from fyrehose.periodic import Checks
from fyrehose.records import MAX_NAME
from fyrehose.web.hosts import hosts_of, is_encrypted
from fyrehose.web.session import EVENTS, JSON, WEB_REFUSALS, RequestHead, WebSession
from fyrehose.web.shell import WebProtocol, token_of, with_token
from fyrehose.web.tokens import read_token, same

T = TypeVar("T")
#: Limit of the streams or subscribers that one answer lists, because a longer list would block the reactor for too
#: long.
MOST_LISTED = 1_000
#: Limit of the number of a page.
MOST_PAGES = 10**7
#: The Content-Security-Policy of the page: it loads only its own files, and no other page may embed it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The advice in errors for peers that the access policy restricts.
_ADVICE = "allow it in the access policy, or set admin.token-file, whose token gives access to everything"
#: The files of the page and their content types, by path.
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        name: (name, "text/javascript; charset=utf-8")
        for name in ("page.js", "chart.js", "cluster.js", "dom.js", "format.js", "live.js", "tables.js", "tail.js")
    },
    "icon.svg": ("icon.svg", "image/svg+xml"),
}


@attrs.define(eq=False)
class Admin:
    """The state that all connections of the admin listener share.

    :ivar token: the token that clients have to present; None if none is configured
    :ivar metrics: the metrics
    :ivar metrics_without_streams: the metrics without names of streams
    :ivar page: content and content type of the page's files, by path
    """

    status: Status
    token: str | None
    metrics: Exporter
    metrics_without_streams: Exporter = attrs.field(
        default=attrs.Factory(lambda self: Exporter(self.status, 0), takes_self=True)
    )
    page: dict[str, tuple[bytes, str]] = attrs.field(factory=lambda: dict(_page()))

    #: Cache of the status events of one sample, by the filter and by whether the events contain names of streams.
    _events: dict[tuple[str, bool], Deferred[bytes]] = attrs.field(factory=dict, init=False)
    _events_time: float = attrs.field(default=0.0, init=False)

    @property
    def broker(self) -> Broker:
        return self.status.broker

    def status_for(self, match: str, limit: int, named: bool) -> Listing:
        """Return the status of the server in steps, without names of streams if the client may not see them.

        :param match: list only streams whose name contains this text
        :param limit: limit of the streams, and of the subscribers, that are listed
        :param named: whether the client may see names of streams; if not, *match* is ignored, because counts of
            matching streams would reveal names
        """
        status = yield from self.status.complete(*((match, limit) if named else ("", 0)))
        if not named:
            status["streams"]["hidden"] = True
        return status

    def status_event(self, sample: Sample, match: str, named: bool) -> Deferred[bytes]:
        """Return the status at *sample* as an event; all callbacks of clients with the same parameters return it."""
        if self._events_time != sample.time:
            self._events_time = sample.time
            self._events.clear()
        key = (match if named else "", named)
        if key not in self._events:
            made = SteppedWork(self.broker.turns, self.status_for(match, LISTED, named)).begin()
            self._events[key] = made.addCallback(partial(as_event, "status"))
        return self._events[key]

    def is_open(self) -> bool:
        """Return whether every authenticated client may see everything, because a token is set or no policy is."""
        policy = self.broker.guard.policy
        return self.token is not None or policy is OPEN or policy is LOOPBACK


class AdminProtocol(WebProtocol):
    """The server's side of one connection to the admin listener."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    settings: AdminSettings

    def __init__(self, factory: AdminFactory) -> None:
        super().__init__(factory, WebSession(factory.hosts, now=factory.now))
        self.admin = factory.admin
        self._stop_stream: Callable[[], object] | None = None

    def on_request(self, request: RequestHead) -> None:
        """Answer a request, or start a streamed answer."""
        allow = {"Allow": "GET, HEAD"}
        if request.method == "OPTIONS":
            self.session.respond_without_content(allow)
        elif request.method not in ("GET", "HEAD"):
            self._refuse(405, "bad-method", "method not allowed; use GET or HEAD", allow)
        elif request.path in (("health",), ("ready",)):
            self._respond_health(request.path[0], request.query.get("for", ""))
        elif self.admin.token is not None and not same(token_of(request), self.admin.token):
            detail = (
                "missing or wrong token: send 'Authorization: Bearer TOKEN', or in a browser enter it as the password"
            )
            self._refuse(401, "bad-token", detail, {"WWW-Authenticate": 'Basic realm="fyrehose", charset="UTF-8"'})
        elif len(request.path) == 1 and request.path[0] in self.admin.page:
            body, content_type = self.admin.page[request.path[0]]
            headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
            self.session.respond(200, body, content_type, headers)
        elif (answer := self.routes.get(_route(request.path))) is not None:
            answer(self, request)
        else:
            paths = "/, /metrics, /health, /ready or /api/status"
            if request.path[0] == "api":
                paths = (
                    "/api/status, /api/streams, /api/subscribers, /api/subscriptions/NAME, /api/history, or /api/events"
                )
            self._refuse(404, "no-such-path", f"unknown path; use {paths}")

    handlers = WebProtocol.handlers | on(RequestHead, on_request)

    def connectionLost(self, reason: Any = None) -> None:
        self._stop_streaming()
        super().connectionLost(reason)

    def take_eof(self) -> None:
        """End an event stream when the client closes its side of the connection: the browser may have left the page."""
        super().take_eof()
        if self._stop_stream is not None:
            self.finish()

    def finish(self) -> None:
        """Close the connection; send a last event first, which tells the client of an event stream to connect again."""
        self._end_stream({"error": "the server closes the connection; connect again to continue", "retry": True})
        super().finish()

    def _respond_health(self, check: str, whom: str) -> None:
        status = self.admin.status
        ready, state = status.ready_for_readers() if whom == "read" else status.ready()
        passed = ready if check == "ready" else self.admin.broker.journal.state is not JournalState.FAILED
        answer = {"ok": passed, "journal": state, "draining": self.admin.broker.draining}
        if check == "health":
            stalls = self.admin.broker.stalls
            answer |= {"stalls": stalls.count, "longest_turn": round(stalls.longest, 1)}
            if passed and (found := journal_status(self.admin.broker)) is not None and found.damage:
                # The status is still 200, because a restart would not repair the damage, and would disconnect all
                # clients.
                answer |= {"ok": False, "damaged_segments": len(found.damage)}
            if passed and (waits := self.admin.broker.journal.meters.write_age) >= LONGEST_WRITE:
                answer |= {"ok": False, "write_age": round(waits, 1)}
        self.session.respond(200 if passed else 503, json.dumps(answer).encode() + b"\n")

    def _metrics(self, request: RequestHead) -> None:
        admin = self.admin
        metrics = admin.metrics if self._may_see_names(request) else admin.metrics_without_streams
        self._respond_later(metrics.text(), lambda text: self._answer(text, CONTENT_TYPE))

    def _status(self, request: RequestHead) -> None:
        if (found := self._page(request)) is not None:
            match = request.query.get("match", "")
            self._respond_later(self.admin.status_for(match, found[0], self._may_see_names(request)), self._respond)

    def _streams(self, request: RequestHead) -> None:
        if (found := self._page(request)) is not None:
            self._check_names(request)
            limit, page = found
            page_of = self.admin.status.streams_page(request.query.get("match", ""), page, limit)
            self._respond_later(page_of, self._respond)

    def _subscribers(self, request: RequestHead) -> None:
        if (found := self._page(request)) is not None:
            self._check_names(request)
            limit, page = found
            self._respond(self.admin.status.subscribers_page(page, limit))

    def _subscription(self, request: RequestHead) -> None:
        self._check_names(request)
        named = self.admin.broker.named
        try:
            self._respond_later(named.show(named.find(request.path[2])), self._respond)
        except errors.NoSuchSubscription as error:
            self._refuse(404, "no-such-subscription", str(error))
        except (errors.Following, errors.Unreplicated) as error:
            self._refuse(503, type(error).__name__.lower(), str(error))

    def _history(self, request: RequestHead) -> None:
        span = request.query.get("span", "1h")
        if span not in SPANS:
            self._refuse(400, "bad-query", f"invalid span {span[:80]!r}: expected {', '.join(SPANS)}")
            return
        samples = self.admin.status.sampler.history.samples(span)
        self._respond({"span": span, "step": SPANS[span][0], "samples": [_sample(sample) for sample in samples]})

    def _events(self, request: RequestHead) -> None:
        """Stream the status, and the latest records of a stream if the request names one."""
        match, stream = request.query.get("match", ""), request.query.get("tail")
        if stream is not None and not 1 <= len(stream.encode()) <= MAX_NAME:
            self._refuse(400, "bad-name", f"invalid stream name: expected 1 to {MAX_NAME} bytes of UTF-8")
            return
        self.session.start(200, EVENTS)
        if request.method == "HEAD":
            self.session.end()
            return
        stops = [self._watch(request, match), *([] if stream is None else [self._tail(request, stream)])]
        self._stop_stream = lambda: [stop() for stop in stops]

    #: The functions that answer requests, by path.
    routes: ClassVar[dict[tuple[str, ...], Callable[[AdminProtocol, RequestHead], None]]] = {
        ("metrics",): _metrics,
        ("api", "status"): _status,
        ("api", "streams"): _streams,
        ("api", "subscribers"): _subscribers,
        ("api", "history"): _history,
        ("api", "subscriptions", "NAME"): _subscription,
        ("api", "events"): _events,
    }

    def _page(self, request: RequestHead) -> tuple[int, int] | None:
        """Return the limit and the page of *request*; refuse it and return None if one is invalid."""
        limit, page = _number(request, "limit", LISTED, MOST_LISTED), _number(request, "page", 0, MOST_PAGES)
        if limit is None or page is None:
            expected = f"a limit from 0 to {MOST_LISTED} and a page from 0 to {MOST_PAGES}"
            self._refuse(400, "bad-query", f"invalid limit or page: expected {expected}")
            return None
        return limit, page

    def _check_names(self, request: RequestHead) -> None:
        """Raise Forbidden unless the peer may see the names of all streams."""
        if not self._may_see_names(request):
            raise errors.Forbidden(f"{self._identity(request)} may not see the names of all streams: {_ADVICE}")

    def _respond(self, answer: dict[str, Any]) -> None:
        self._answer(dumped(answer) + b"\n")

    def _respond_later(self, steps: Generator[None, None, T], respond: Callable[[T], object]) -> None:
        """Call *respond* with what *steps* return, which are taken in turns."""
        self.call(SteppedWork(self.broker.turns, steps, self.network).begin(), respond)

    def _answer(self, body: bytes, content_type: str = JSON) -> None:
        if self.writable and self.session.unanswered:
            self.session.respond(200, body, content_type)
            self.proceed()

    def _identity(self, request: RequestHead) -> Identity:
        return with_token(self.identity, token_of(request))

    def _may_read(self, request: RequestHead, stream: str) -> bool:
        """Return whether the peer may see the records of *stream*."""
        admin, guard = self.admin, self.admin.broker.guard
        identity = self._identity(request)
        return admin.is_open() or guard.policy.allows(identity, Action.SUBSCRIBE, stream, guard.now())

    def _may_see_names(self, request: RequestHead) -> bool:
        """Return whether the peer may see the names of all streams."""
        guard = self.admin.broker.guard
        return self.admin.is_open() or guard.policy.allows_every(self._identity(request), Action.SUBSCRIBE, guard.now())

    def _refuse(self, status: int, cause: str, detail: str, headers: dict[str, str] | None = None) -> None:
        self.count_refusal(*self.session.refuse(status, cause, detail, headers))

    def _stop_streaming(self) -> None:
        stop, self._stop_stream = self._stop_stream, None
        if stop is not None:
            stop()

    def _end_stream(self, reason: dict[str, object]) -> None:
        """If there is an event stream, end it with *reason* as its last event."""
        if self.phase is Phase.OPEN and self._stop_stream is not None:
            self._stop_streaming()
            self.session.send(as_event("ended", reason))
            self.session.end()

    def _send_event(self, name: str, value: object) -> None:
        if self.phase is Phase.OPEN:
            self.session.send(as_event(name, value))
            self.flush()

    def _watch(self, request: RequestHead, match: str) -> Callable[[], None]:
        sampler = self.admin.status.sampler
        self._send_event("history", [_sample(sample) for sample in sampler.samples])
        steps = self.admin.status_for(match, LISTED, self._may_see_names(request))
        first = SteppedWork(self.broker.turns, steps).begin()
        first.addCallback(lambda status: self._send_event("status", status)).addErrback(self.failed)

        def send_sample(sample: Sample, status: bytes | Failure) -> bytes | Failure:
            if isinstance(status, Failure):  # without this, the page would wait for samples for ever
                self.failed(status)
            elif self.phase is Phase.OPEN and self._stop_stream is not None and not self.outgoing.paused:
                self.session.send(as_event("sample", _sample(sample)) + status)
                self.flush()
            return status

        def sampled(sample: Sample) -> None:
            if not self.outgoing.paused:  # for a client that does not read, samples are left out instead of queued
                event = self.admin.status_event(sample, match, self._may_see_names(request))
                event.addBoth(partial(send_sample, sample))

        return sampler.watch(sampled)

    def _tail(self, request: RequestHead, stream: str) -> Callable[[], None]:
        """Begin to send the latest records of *stream*; return a function that stops that."""
        broker = self.admin.broker
        tail = StreamTail(broker, stream)

        def send_new() -> Iterator[None]:
            """Send the newest records as an event, or why there are no more."""
            yield
            if self.outgoing.paused:
                return
            try:
                if not self._may_read(request, stream):
                    raise errors.Forbidden(f"{self._identity(request)} may not read stream {stream[:80]!r}: {_ADVICE}")
                new = tail.read()
            except (errors.Forbidden, errors.JournalError) as error:
                checks.stop()
                if isinstance(error, errors.Forbidden):
                    self.broker.counters.refuse(self.log, PROTOCOL, type(error).__name__, self.peer, str(error))
                self._send_event("tail-ended", {"error": str(error)})
                return
            except Exception:
                self.failed(Failure())
                return
            if new is not None:
                self._send_event("records", new)

        checks = Checks(self.clock, send_new, INTERVAL, "the latest records of a stream", broker.turns)
        checks.start()
        checks.begin()
        return checks.stop


class AdminFactory(SessionFactory):
    """The factory of connections to the admin listener (see :class:`~fyrehose.protocols.http.server.HttpFactory`)."""

    protocol = AdminProtocol
    defaults = AdminSettings()
    refusals = (
        *WEB_REFUSALS,
        "bad-method",
        "bad-name",
        "bad-query",
        "bad-token",
        "following",
        "no-such-path",
        "no-such-subscription",
    )
    proofs = None
    settings: AdminSettings

    def __init__(
        self, admin: Admin, settings: AdminSettings | None = None, reactor: Any = None, endpoint: str | None = None
    ) -> None:
        super().__init__(admin.broker, settings, reactor)
        self.admin, self.now, self._endpoint = admin, time.time, endpoint
        self.configure(self.settings)

    def configure(self, settings: AdminSettings) -> None:
        super().configure(settings)
        self.hosts = hosts_of(self._endpoint, settings.hosts)


class AdminService(TCPService):
    """The service of an admin listener, which samples the server while it runs."""

    def __init__(self, reactor: Any, endpoint: str, admin: Admin, settings: AdminSettings) -> None:
        self._admin = admin
        self._where = endpoint
        self._scheme = "https" if settings.tls_certificate or is_encrypted(endpoint) else "http"
        super().__init__(reactor, PROTOCOL, endpoint, AdminFactory(admin, settings, reactor, endpoint))

    def startService(self) -> Deferred[IListeningPort]:
        self._admin.status.sampler.start()
        return super().startService()

    def fixed(self, settings: Any) -> Collection[str]:
        return {"metric_streams", *super().fixed(settings)}

    @property
    def contents(self) -> Mapping[str, FileContent]:
        return {**super().contents, **_token_file(self._admin.token)}

    def prepare(self, settings: AdminSettings) -> Prepared:
        """See :meth:`.IReloading.prepare`; if the token has changed, all connections are closed."""
        check_place(self._where, settings)
        token, rest = read_token(settings.token_file, TOKEN_FILE), super().prepare(settings)

        def apply() -> None:
            rest.apply()
            if token != self._admin.token:
                self._admin.token = token
                for connection in list(self.factory.connections):
                    connection.finish()

        return Prepared(apply, {**rest.contents, **_token_file(token)})

    def _listening(self, port: IListeningPort) -> IListeningPort:
        address: Any = port.getHost()
        if isinstance(address, INET):
            host = "127.0.0.1" if address.host in ("0.0.0.0", "::") else address.host
            where = place_text(host, address.port)
            AdminProtocol.log.info("the page is at {scheme}://{where}/", scheme=self._scheme, where=where)
        return super()._listening(port)

    def stopService(self) -> Deferred[None]:
        self._admin.status.sampler.stop()
        return super().stopService()


def make_admin(
    broker: Broker, clock: Any, now: Callable[[], float], settings: AdminSettings, token: str | None
) -> Admin:
    """Return the shared state of an admin listener for *broker*.

    :param now: the wall clock, in seconds since 1970 UTC
    """
    status = Status(broker, Sampler(clock, broker, now), now(), StreamRates(clock.seconds, broker))
    return Admin(status, token, Exporter(status, settings.metric_streams))


def _route(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return *path* with NAME instead of the name of a subscription."""
    return (*path[:2], "NAME") if path[:2] == ("api", "subscriptions") and len(path) == 3 else path


def _number(request: RequestHead, name: str, default: int, largest: int) -> int | None:
    """Return the query's value for *name*, or *default*; None if it is not a number from 0 to *largest*."""
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= largest):
        return None
    return int(text)


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "time": round(sample.time, 3),
        "published": {protocol: [round(rate, 1) for rate in rates] for protocol, rates in sample.published.items()},
        "delivered": {protocol: [round(rate, 1) for rate in rates] for protocol, rates in sample.delivered.items()},
        "written": round(sample.written),
        "lag": round(sample.lag, 6),
    }


def _page() -> list[tuple[str, tuple[bytes, str]]]:
    folder = files("fyrehose.admin") / "page"
    return [(path, ((folder / name).read_bytes(), kind)) for path, (name, kind) in FILES.items()]


def _token_file(token: str | None) -> dict[str, FileContent]:
    return {} if token is None else {"token_file": FileContent.of(token.encode())}
