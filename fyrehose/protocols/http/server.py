"""The HTTP listener's server: a web session in the TCP shell, the broker behind it.

Publish -> broker.publish -> durable -> {"stream": ..., "first": ..., "last": ...}, when the whole body is
Read    -> broker.subscribe, up to what was there when it was asked -> a JSON object a line
Retire  -> broker.retire -> durable -> 204
Live    -> broker.subscribe -> server-sent events, for as long as somebody reads them
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, ClassVar

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose import errors
from fyrehose.errors import FyrehoseError
from fyrehose.identity import digest
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import PROOFS, SessionFactory
from fyrehose.options import option, size
from fyrehose.protocols.http.answers import Listening, Reading
from fyrehose.protocols.http.session import (
    EVENTS,
    NDJSON,
    PROTOCOL,
    HttpSession,
    Limits,
    Live,
    Publish,
    Published,
    Read,
    Retire,
    Spoiled,
)
from fyrehose.records import MAX_PAYLOAD, Run
from fyrehose.web.places import hosts_of
from fyrehose.web.server import RETRY, WebProtocol, WebSettings, token_of
from fyrehose.web.session import Asked, Refused

#: Ranges of numbers that an answer names; one more than that, and it says only the first and the last.
MOST_RANGES = 1_000

#: What a refusal of the broker's is in HTTP.
_STATUS: dict[type[FyrehoseError], int] = {
    errors.InvalidName: 400,
    errors.PayloadTooLarge: 413,
    errors.Forbidden: 403,
    errors.TooManyStreams: 507,
    errors.NewStreamRateExceeded: 429,
    errors.NewStreamForbidden: 403,
    errors.StreamFull: 507,
    errors.NoSuchStream: 404,
    errors.StreamInUse: 409,
}


#: What goes with a refusal, by its status.
_HEADERS = {503: {"Retry-After": RETRY}, 429: {"Retry-After": RETRY}, 401: {"WWW-Authenticate": "Bearer"}}


@attrs.frozen(kw_only=True)
class Settings(WebSettings):
    """The HTTP listener's options."""

    max_payload: int = option(MAX_PAYLOAD, size, "largest message taken, in bytes")
    max_body: int = option(16 << 30, size, "largest body of a message a line, where its length is known, in bytes")

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            raise ValueError(f"max_payload is 1 to {MAX_PAYLOAD} bytes")


@attrs.define(eq=False)
class Upload:
    """A POST under way: what of it is durable, and what is still to be.

    :ivar spoiled: why what follows is not taken
    :ivar ranges: (first, last) of what is durable
    """

    stream: str
    whole: bool = False
    spoiled: Refused | None = None
    waiting: int = 0
    count: int = 0
    ranges: list[tuple[int, int]] = attrs.field(factory=list)

    def durable(self, first: int, count: int) -> None:
        """So many more are."""
        self.waiting -= 1
        self.count += count
        if self.ranges and self.ranges[-1][1] + 1 == first:
            self.ranges[-1] = (self.ranges[-1][0], first + count - 1)
        elif len(self.ranges) <= MOST_RANGES:
            self.ranges.append((first, first + count - 1))
        else:
            self.ranges[-1] = (self.ranges[-1][0], first + count - 1)

    def said(self) -> dict[str, Any]:
        """What the answer says."""
        said: dict[str, Any] = {"stream": self.stream, "count": self.count}
        if self.ranges:
            said |= {"first": self.ranges[0][0], "last": self.ranges[-1][1]}
        if 1 < len(self.ranges) <= MOST_RANGES:  # somebody else published in between
            said["ranges"] = self.ranges
        return said


class HttpProtocol(WebProtocol):
    """One connection."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()
    handlers: ClassVar[dict[type, str]] = {
        **WebProtocol.handlers,
        Publish: "published",
        Published: "all_published",
        Spoiled: "spoiled",
        Read: "read",
        Live: "listened",
        Retire: "retired",
    }

    session: HttpSession
    settings: Settings

    def __init__(self, session: HttpSession, broker: IBroker, clock: IReactorTime, settings: Settings) -> None:
        super().__init__(session, broker, clock, settings)
        self._upload: Upload | None = None
        self._reading: Reading | Listening | None = None

    # What the session says.

    def published(self, event: Publish) -> None:
        """Publish, and answer when everything is durable: then and not before."""
        if not self.session.answering or (self._upload is not None and self._upload.spoiled is not None):
            return  # what came before it was refused
        if self._upload is None:
            self._upload = Upload(event.stream)
            self._show(event.asked)
        upload = self._upload
        upload.waiting += 1
        run = Run.of(
            event.stream,
            event.payloads,
            source=PROTOCOL,
            producer=self.identity.name or self.address,
            content_type=event.content_type,
        )

        def durable(firsts: tuple[int, ...]) -> None:
            upload.durable(firsts[0], len(run))

        self.publish([run], durable)

    def all_published(self, event: Published) -> None:
        """The body is over."""
        if self._upload is None and self.session.answering:  # a body of lines without any
            self.session.respond(200, b'{"count": 0}\n')
        elif self._upload is not None:
            self._upload.whole = True
            self.settled()

    def spoiled(self, event: Spoiled) -> None:
        """The rest of the body is not taken."""
        if self._upload is not None and self._upload.spoiled is None:
            self.refused(event.why)
            self.break_off(event.why)
            self.settled()

    def settled(self) -> None:
        upload = self._upload
        if upload is None or upload.waiting or not self.session.answering:
            return
        if upload.spoiled is not None:
            self._excuse(upload.spoiled)
        elif upload.whole:
            self._upload = None
            self.session.respond(200, json.dumps(upload.said()).encode() + b"\n")
        else:
            return
        self.go_on()

    def read(self, event: Read) -> None:
        """Send what is there."""
        self._show(event.asked)
        oldest, last = self.broker.bounds(event.stream)
        if not self.broker.exists(event.stream):
            self.refused(*self.session.refuse(404, "no-such-stream", f"there is no stream {event.stream!r}"))
            return
        first = max(event.first, oldest)
        bounds = {"Fyrehose-Oldest": str(oldest), "Fyrehose-Last": str(last)}
        self.session.start(200, NDJSON, bounds)
        if first > last or not event.limit or event.asked.method == "HEAD":
            self.session.end()
            return
        self._reading = Reading(self, event.stream, first, last, event.limit)
        self.attach(self._reading)

    def listened(self, event: Live) -> None:
        """Send what comes."""
        self._show(event.asked)
        listening = Listening(self)
        subscription = self.broker.subscribe(event.stream, event.after, listening)
        self.session.start(200, EVENTS)
        if event.asked.method == "HEAD":
            subscription.stopProducing()
            self.session.end()
            return
        if event.after is not None and subscription.position > event.after:
            listening.skipped(event.after + 1, subscription.position)
        self._reading = listening
        listening.begin(subscription)

    def retired(self, event: Retire) -> None:
        """Retire a stream, and answer when that is durable."""
        self._show(event.asked)
        self.carry_out(partial(self.broker.retire, [event.stream]), self._gone, self._not_retired)

    def over(self) -> None:
        """What was read is sent."""
        self._reading = None
        if not self._closing:
            self.session.end()
            self.go_on()

    def cut_off(self, reason: Exception) -> None:
        """An answer cannot be ended as it should be."""
        self.log.warn(
            "{protocol}: an answer to {peer} was cut off: {reason}",
            protocol=PROTOCOL,
            peer=self.peer,
            reason=str(reason),
        )
        self.flush()
        self.transport.abortConnection()

    # What the shell calls.

    def finish(self) -> None:
        """Say to who still waits that this is the end, where that can be said."""
        if not self._closing and isinstance(self._reading, Listening) and self.session.streaming:
            self.session.end()
        super().finish()

    def break_off(self, why: Refused) -> None:
        """Answer it, as soon as it is known how much of the body was taken before."""
        if self._upload is None:
            self._excuse(why)
        elif self._upload.spoiled is None:
            self._upload.spoiled = why

    def _hang_up(self) -> None:
        if self.session.answering and not self.session.streaming:
            spoiled = self._upload.spoiled if self._upload is not None else None
            if spoiled is None:
                spoiled = Refused(status=503, cause="closing", detail="the server is closing")
                self.refused(spoiled)
            self._excuse(spoiled)
        super()._hang_up()

    def connectionLost(self, reason: Any = None) -> None:
        if self._reading is not None:
            self._reading.stop()
        super().connectionLost(reason)

    def _refused(self, failure: Failure) -> None:
        """A publish was: the answer says so, and how much of the body was taken before."""
        failure.trap(FyrehoseError)
        error, upload = failure.value, self._upload
        assert upload is not None, "it is there until everything is settled"
        upload.waiting -= 1
        if self._disconnected() or upload.spoiled is not None:  # the rest of a body whose beginning was refused
            self.broker.counters.add(PROTOCOL, "refused-behind-a-refusal")
            return
        upload.spoiled = self._refusal_of(error)
        self.refused(upload.spoiled)

    def _refusal_of(self, error: BaseException | None) -> Refused:
        """Return what the broker's refusal *error* is in HTTP."""
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)
        if isinstance(error, errors.Forbidden) and not self.identity.token:
            status = 401
        return Refused(status=status, cause=type(error).__name__, detail=str(error))

    def _gone(self, _: None) -> None:
        if self.session.answering:
            self.session.respond_without_content()
            self.go_on()

    def _not_retired(self, failure: Failure) -> None:
        failure.trap(FyrehoseError)
        why = self._refusal_of(failure.value)
        self.refused(why)
        if self.session.answering and not self._disconnected():
            self.session.refuse(why.status, why.cause, why.detail, _HEADERS.get(why.status))
            self.go_on()

    def _excuse(self, why: Refused) -> None:
        """Answer that it came to nothing, or to how much."""
        upload, self._upload = self._upload, None
        published = 0 if upload is None else upload.count
        self.session.refuse(why.status, why.cause, why.detail, _HEADERS.get(why.status), published=published)

    def _show(self, asked: Asked) -> None:
        """Be who the request says that it is, with its token."""
        token = token_of(asked)
        shown = None if token is None else digest(token)
        if shown != self.identity.token:
            self.identity = attrs.evolve(self.identity, token=shown)
            self.broker = self.broker.identified(self.identity)


def make_factory(broker: IBroker, clock: IReactorTime, endpoint: str, settings: Settings) -> SessionFactory:
    """What listens."""
    limits = Limits(message=settings.max_payload, body=settings.max_body)
    hosts = hosts_of(endpoint, settings.hosts)

    def make() -> HttpProtocol:
        return HttpProtocol(HttpSession(hosts, limits=limits), broker, clock, settings)

    proofs = PROOFS | {"token"}
    return SessionFactory(make, PROTOCOL, HttpProtocol.log, broker, clock, settings, proofs=proofs)
