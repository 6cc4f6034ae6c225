"""The admin listener: the page, what it shows, and what Prometheus asks for.

    GET /                           the page, and /page.css, /page.js, /icon.svg
    GET /metrics                    for Prometheus
    GET /health  /ready             200, or 503 and why: it can go on; it takes messages in
    GET /api/status?match=&limit=   everything as JSON
    GET /api/streams?match=&page=&limit=    all streams, page by page, in the order in which they were made
    GET /api/subscribers?page=&limit=       all subscribers, in the same way
    GET /api/events?match=          the last minutes, then the status each second, as server-sent events
    GET /api/streams/NAME/tail      what comes into a stream, as much as can be read, as server-sent events

With a token, everything but /health and /ready asks for it: as ``Bearer``, or as a password, which browsers do.  The
token shows everything.  Without one (on this machine only) a policy holds here, too: the tail of a stream is for a peer
that may subscribe to the stream, and names of streams are for a peer that may subscribe to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, ClassVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IListeningPort, IReactorTime
from twisted.logger import Logger

from fyrehose import errors
from fyrehose.admin import metrics
from fyrehose.admin.sampling import Sample, Sampler, StreamRates
from fyrehose.admin.settings import PROTOCOL, Settings, read_token
from fyrehose.admin.status import LISTED, Status
from fyrehose.admin.tail import EVERY, Tail, as_event
from fyrehose.core.broker import Broker
from fyrehose.core.policy import LOOPBACK, OPEN
from fyrehose.identity import Action, Identity, digest
from fyrehose.interfaces import JournalState
from fyrehose.net.connections import SessionFactory
from fyrehose.net.endpoints import TCPService
from fyrehose.records import MAX_NAME
from fyrehose.web.hosts import hosts_of, is_encrypted
from fyrehose.web.server import WebProtocol, token_of
from fyrehose.web.session import Request, WebSession
from fyrehose.web.tokens import same

EVENTS = "text/event-stream"
#: Streams and subscribers that one answer lists at the most; more would keep the reactor too long.
MOST_LISTED = 1_000
#: The last page that there can be.
MOST_PAGES = 10**7
#: Nothing but our own script and style, and nobody may put the page into one of theirs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: What a peer can do that the policy shows too little to.
_ADVICE = "allow it by the policy, or set admin.token-file, whose token shows everything"
#: The files of the page, by the paths that they are asked for.
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}


@attrs.define(eq=False)
class Admin:
    """What all connections of a listener share."""

    status: Status
    token: str | None
    exported: Any
    #: the same without names of streams
    unnamed: Any = attrs.field(default=attrs.Factory(lambda self: metrics.registry(self.status, 0), takes_self=True))
    page: dict[str, tuple[bytes, str]] = attrs.field(factory=lambda: dict(_page()))

    #: the status as an event, by what streams had to match and whether they are named, until the next sample
    _events: dict[tuple[str, bool], bytes] = attrs.field(factory=dict, init=False)
    _at: float = attrs.field(default=0.0, init=False)

    @property
    def broker(self) -> Broker:
        return self.status.broker

    def whole(self, match: str, limit: int, named: bool) -> dict[str, Any]:
        """The status; without names of streams, and without a way to find them out, unless they may be ``named``."""
        if named:
            return self.status.complete(match, limit)
        said = self.status.complete("", 0)
        said["streams"]["hidden"] = True
        return said

    def status_event(self, sample: Sample, match: str, named: bool) -> bytes:
        """The status as of ``sample``, put together once however many look at it."""
        if self._at != sample.time:
            self._at = sample.time
            self._events.clear()
        key = (match if named else "", named)
        if key not in self._events:
            self._events[key] = as_event("status", self.whole(match, LISTED, named))
        return self._events[key]

    def is_open(self) -> bool:
        """Return whether a peer that has come so far may see everything: it has the token, or there is no policy."""
        policy = self.broker.guard.policy
        return self.token is not None or policy is OPEN or policy is LOOPBACK


class AdminProtocol(WebProtocol):
    """One connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {**WebProtocol.handlers, Request: "asked"}

    settings: Settings

    def __init__(self, admin: Admin, session: WebSession, clock: IReactorTime, settings: Settings) -> None:
        super().__init__(session, admin.broker, clock, settings)
        self.admin = admin
        self._end_stream: Callable[[], None] | None = None

    def asked(self, event: Request) -> None:
        """Answer."""
        if event.method not in ("GET", "HEAD"):
            self._refuse(405, "bad-method", "it reads and changes nothing: GET, HEAD", {"Allow": "GET, HEAD"})
        elif event.path in (("health",), ("ready",)):
            self._well(event.path[0])
        elif self.admin.token is not None and not same(token_of(event), self.admin.token):
            said = "this needs the token: curl -H 'Authorization: Bearer TOKEN', or in a browser as the password"
            self._refuse(401, "bad-token", said, {"WWW-Authenticate": 'Basic realm="fyrehose", charset="UTF-8"'})
        elif len(event.path) == 1 and event.path[0] in self.admin.page:
            body, kind = self.admin.page[event.path[0]]
            headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
            self.session.respond(200, body, kind, headers)
        elif event.path == ("metrics",):
            exported = self.admin.exported if self._named(event) else self.admin.unnamed
            self.session.respond(200, metrics.text(exported), metrics.CONTENT_TYPE)
        elif event.path[0] == "api":
            self._api(event)
        else:
            self._refuse(404, "no-such-path", "there are /, /metrics, /health, /ready and /api/status")

    def connectionLost(self, reason: Any = None) -> None:
        self._over()
        super().connectionLost(reason)

    def finish(self) -> None:
        if not self._closing and self._end_stream is not None:
            self._over()
            self.session.end()
        super().finish()

    # Inside.

    def _well(self, what: str) -> None:
        ready, state = self.admin.status.ready()
        well = ready if what == "ready" else self.admin.broker.journal.state is not JournalState.FAILED
        self.session.respond(200 if well else 503, json.dumps({"ok": well, "journal": state}).encode() + b"\n")

    def _api(self, event: Request) -> None:
        match, status = event.query.get("match", ""), self.admin.status
        what = event.path[1] if len(event.path) == 2 else ""
        if what in ("status", "streams", "subscribers"):
            limit, page = _number(event, "limit", LISTED, MOST_LISTED), _number(event, "page", 0, MOST_PAGES)
            if limit is None or page is None:
                said = f"limit is a number from 0 to {MOST_LISTED}, and page one from 0 to {MOST_PAGES}"
                self._refuse(400, "bad-query", said)
            elif what == "status":
                self._respond(self.admin.whole(match, limit, self._named(event)))
            elif not self._named(event):
                raise errors.Forbidden(f"{self._identity(event)} may not see the names of all streams: {_ADVICE}")
            elif what == "streams":
                self._respond(status.streams_page(match, page, limit))
            else:
                self._respond(status.subscribers_page(page, limit))
        elif event.path == ("api", "events"):
            self._stream(event, lambda: self._watch(event, match))
        elif len(event.path) == 4 and event.path[1] == "streams" and event.path[3] == "tail":
            stream = event.path[2]
            if not 1 <= len(stream.encode()) <= MAX_NAME:
                self._refuse(400, "bad-name", f"a stream's name is 1 to {MAX_NAME} bytes of UTF-8")
                return
            if not self._may_read(event, stream):
                raise errors.Forbidden(f"{self._identity(event)} may not read stream {stream[:80]!r}: {_ADVICE}")
            self._stream(event, lambda: self._tail(event, stream))
        else:
            said = "there are /api/status, /api/streams, /api/subscribers, /api/events and /api/streams/NAME/tail"
            self._refuse(404, "no-such-path", said)

    def _respond(self, said: dict[str, Any]) -> None:
        self.session.respond(200, json.dumps(said, ensure_ascii=False).encode() + b"\n")

    def _identity(self, event: Request) -> Identity:
        token = token_of(event)
        return self.identity if token is None else attrs.evolve(self.identity, token=digest(token))

    def _may_read(self, event: Request, stream: str) -> bool:
        """Return whether the peer may see what is in ``stream``."""
        admin = self.admin
        return admin.is_open() or admin.broker.guard.policy.allows(self._identity(event), Action.SUBSCRIBE, stream)

    def _named(self, event: Request) -> bool:
        """Return whether the peer may see the names of all streams."""
        return self.admin.is_open() or self.admin.broker.guard.policy.allows_every(
            self._identity(event), Action.SUBSCRIBE
        )

    def _refuse(self, status: int, cause: str, detail: str, headers: dict[str, str] | None = None) -> None:
        self.count_refusal(*self.session.refuse(status, cause, detail, headers))

    def _stream(self, event: Request, begin: Callable[[], Callable[[], None]]) -> None:
        """Begin an answer that goes on until the peer has enough."""
        self.session.start(200, EVENTS)
        if event.method == "HEAD":
            self.session.end()
        else:
            self._end_stream = begin()

    def _over(self) -> None:
        end, self._end_stream = self._end_stream, None
        if end is not None:
            end()

    def _say(self, name: str, value: object) -> None:
        self.session.send(as_event(name, value))
        self.flush()

    def _watch(self, event: Request, match: str) -> Callable[[], None]:
        sampler = self.admin.status.sampler
        self._say("history", [_sample(sample) for sample in sampler.samples])
        self._say("status", self.admin.whole(match, LISTED, self._named(event)))

        def sampled(sample: Sample) -> None:
            if not self._write_paused:  # whoever reads slowly sees fewer of them
                status = self.admin.status_event(sample, match, self._named(event))
                self.session.send(as_event("sample", _sample(sample)) + status)
                self.flush()

        return sampler.watch(sampled)

    def _tail(self, event: Request, stream: str) -> Callable[[], None]:
        tail = Tail(self.admin.broker, stream)
        timer: IDelayedCall

        def look() -> None:
            nonlocal timer
            timer = self.clock.callLater(EVERY, look)
            if self._write_paused:
                return
            if not self._may_read(event, stream):  # the policy has changed
                self._say("ended", {"error": f"the policy does not allow this stream any more: {_ADVICE}"})
                self.finish()
                return
            try:
                new = tail.look()
            except errors.JournalError as error:
                self._say("ended", {"error": str(error)})
                self.finish()
                return
            if new is not None:
                self._say("records", new)

        timer = self.clock.callLater(0, look)
        return lambda: timer.cancel() if timer.active() else None


class AdminService(TCPService):
    """Listens, and looks at the server while it does."""

    def __init__(self, reactor: Any, endpoint: str, admin: Admin, settings: Settings, around: Any = None) -> None:
        self._admin = admin
        self._token_file = settings.token_file
        self._scheme = "https" if settings.tls_certificate or is_encrypted(endpoint) else "http"
        factory = make_factory(reactor, endpoint, admin, settings)
        super().__init__(reactor, PROTOCOL, endpoint, factory, None if around is None else around(factory))

    def startService(self) -> Deferred[IListeningPort]:
        self._admin.status.sampler.start()
        return super().startService()

    def reload(self) -> None:
        """Read the token and the certificates again.  Whoever looks on with another token has to show the new one.

        :raises ConfigError: one cannot be used; that one stays as it was
        """
        token = read_token(self._token_file)
        if token != self._admin.token:
            self._admin.token = token
            for connection in list(self.factory.connections):
                connection.finish()
        super().reload()

    def _listening(self, port: IListeningPort) -> IListeningPort:
        address: Any = port.getHost()
        if hasattr(address, "port"):
            host = "127.0.0.1" if address.host in ("0.0.0.0", "::") else address.host
            place = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
            AdminProtocol.log.info("the page is at {scheme}://{place}/", scheme=self._scheme, place=place)
        return super()._listening(port)

    def stopService(self) -> Deferred[None]:
        self._admin.status.sampler.stop()
        return super().stopService()


def make_admin(broker: Broker, clock: Any, now: Callable[[], float], settings: Settings, token: str | None) -> Admin:
    """What the listener to ``broker`` needs; ``now`` is the wall clock, in seconds since 1970 UTC."""
    status = Status(broker, Sampler(clock, broker, now), now(), StreamRates(clock.seconds, broker))
    return Admin(status, token, metrics.registry(status, settings.metric_streams))


def make_factory(clock: IReactorTime, endpoint: str, admin: Admin, settings: Settings) -> SessionFactory:
    """What listens."""
    hosts = hosts_of(endpoint, settings.hosts)

    def make() -> AdminProtocol:
        return AdminProtocol(admin, WebSession(hosts), clock, settings)

    return SessionFactory(make, PROTOCOL, AdminProtocol.log, admin.broker, clock, settings, proofs=None)


def _number(event: Request, name: str, default: int, most: int) -> int | None:
    """Return the number that the query has for *name*; None if it is no number from 0 to *most*."""
    text = event.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= most):
        return None
    return int(text)


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "time": round(sample.time, 3),
        "published": {protocol: [round(rate, 1) for rate in rates] for protocol, rates in sample.published.items()},
        "delivered": {protocol: [round(rate, 1) for rate in rates] for protocol, rates in sample.delivered.items()},
        "lag": round(sample.lag, 6),
    }


def _page() -> list[tuple[str, tuple[bytes, str]]]:
    folder = files("fyrehose.admin") / "page"
    return [(path, ((folder / name).read_bytes(), kind)) for path, (name, kind) in FILES.items()]
