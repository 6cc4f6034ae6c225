"""The server of syslog: connects a session in the TCP shell, or a UDP port, to the broker.

    bytes -> session -> messages -> runs by stream -> broker.publish -> durable -> the answers of RELP
    datagrams ----------------------^

Without RELP nothing is answered, so the sender cannot know what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from struct import pack
from typing import Any, ClassVar

import attrs
from twisted.logger import Logger

from fyrehose.errors import Forbidden, FyrehoseError, PayloadTooLarge, PublishError
from fyrehose.identity import Action
from fyrehose.interfaces import IBroker
from fyrehose.net.connections import SessionFactory
from fyrehose.net.tcp import SessionProtocol, on
from fyrehose.net.tls import TLSSettings
from fyrehose.net.udp import Address
from fyrehose.net.udp_server import UDPServerProtocol
from fyrehose.options import exact_size, name, one_of, option, size
from fyrehose.protocols.syslog.message import FIELDS, fields_of
from fyrehose.protocols.syslog.session import (
    MAX_MESSAGE,
    LargeMessage,
    RelpClosed,
    SyslogMessages,
    SyslogServerSession,
)
from fyrehose.records import MAX_PAYLOAD, Publish, Run, halves
from fyrehose.routes import CERTIFICATE, Route, routes
from fyrehose.subscriptions import letters

PROTOCOL = "syslog"
RAW, JSON, BOTH = "raw", "json", "json+raw"
EVENTS = ("dropped-by-kernel",)
REFUSALS = (
    *("bad-header", "bad-trailer", "frame-too-large", "journal-behind", "not-syslog", "receive-error"),
    "truncated-frame",
)


@attrs.frozen(kw_only=True)
class SyslogSettings(TLSSettings):
    """The options of syslog."""

    stream: str = option("syslog", name, "stream of the messages that no route takes")
    routes: tuple[Route, ...] = option((), routes, "streams by content, such as logs.{hostname}")
    format: str = option(RAW, one_of(RAW, JSON, BOTH), "payload: raw (the message), json (its fields), or json+raw")
    max_payload: int = option(MAX_MESSAGE, size, "largest message accepted")
    refused: str = option(
        letters.KEEP_FORBIDDEN, letters.choice, "refused messages: close, dead-letter or dead-letter+policy"
    )

    def __attrs_post_init__(self) -> None:
        if not 0 < self.max_payload <= MAX_PAYLOAD:
            most, found = exact_size(MAX_PAYLOAD), exact_size(self.max_payload)
            raise ValueError(f"max-payload must be from 1 to {most}, not {found}")
        words = {word for route in self.routes for word in route.words}
        if words - {*FIELDS, CERTIFICATE}:
            unknown = sorted(words - {*FIELDS, CERTIFICATE})
            raise ValueError(f"routes have no field {unknown[0]!r}; expected {', '.join(FIELDS)} or {CERTIFICATE}")

    @property
    def silent_timeout(self) -> float:
        """Return 0, no limit, because senders connect before they have a message."""
        return 0.0

    def runs(
        self, payloads: Sequence[bytes], numbers: Sequence[int], producer: str, certificate: str | None, now: float
    ) -> list[Run]:
        """Return messages as runs of their streams, in their order within each stream.

        :param numbers: the numbers of RELP's transactions; empty without RELP
        :param certificate: the name that the sender has proved
        :param now: the present time, in seconds since 1970
        """
        if not self.routes and self.format == RAW:
            return [self._run(self.stream, payloads, numbers, producer)]
        at = datetime.fromtimestamp(now, UTC).astimezone()
        streams: dict[str, tuple[list[bytes], list[int]]] = {}
        for index, payload in enumerate(payloads):
            fields = fields_of(payload, at)
            values = {CERTIFICATE: certificate, **{word: fields.get(word) for word in FIELDS}}
            found = next(filter(None, (route.stream(values) for route in self.routes)), self.stream)
            column = streams.setdefault(found, ([], []))
            column[0].append(payload if self.format == RAW else self._object(fields, payload))
            column[1].extend(numbers[index : index + 1])
        return [self._run(stream, *column, producer) for stream, column in streams.items()]

    def _object(self, fields: dict[str, Any], payload: bytes) -> bytes:
        if self.format == BOTH:
            fields["raw"] = payload.decode("utf-8", "replace")
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    def _run(self, stream: str, payloads: Sequence[bytes], numbers: Sequence[int], producer: str) -> Run:
        return Run.of(
            stream,
            payloads,
            source=PROTOCOL,
            producer=producer,
            content_type=None if self.format == RAW else "application/json",
            producer_seq=pack(f"<{len(numbers)}Q", *numbers) if numbers else None,
        )


class SyslogProtocol(SessionProtocol):
    """One connection of a sender."""

    protocol_name: ClassVar[str] = PROTOCOL
    log: ClassVar[Logger] = Logger()

    session: SyslogServerSession
    settings: SyslogSettings

    def __init__(self, factory: SyslogFactory) -> None:
        super().__init__(factory, SyslogServerSession(factory.settings.max_payload))

    def messages_received(self, event: SyslogMessages) -> None:
        """Publish messages."""
        self.publish(self._runs(event.payloads, event.numbers))

    def large_received(self, event: LargeMessage) -> None:
        """Store the beginning of a message that is too large as a dead letter, so that its sender goes on."""
        numbers = [] if event.number is None else [event.number]
        error = PayloadTooLarge(
            f"a message of {event.size} bytes; the limit is {self.settings.max_payload}; raise syslog.max-payload"
        )
        if not self.keep_refused(self._runs([bytes(event.payload)], numbers), None, error, event.size):
            self.refused(error)

    def closed(self, event: RelpClosed) -> None:
        """End a RELP session once its messages are settled."""
        self.finish()

    handlers = (
        SessionProtocol.handlers
        | on(SyslogMessages, messages_received)
        | on(LargeMessage, large_received)
        | on(RelpClosed, closed)
    )

    def _runs(self, payloads: Sequence[bytes], numbers: Sequence[int]) -> list[Run]:
        return self.settings.runs(payloads, numbers, self.producer, self.identity.name, self.clock.seconds())

    # Called by the TCP shell.

    def durable(self, items: Sequence[Publish]) -> None:
        """Answer the transactions of RELP."""
        if self.session.relp:
            self.session.acknowledge(
                number for item in items for run in item.runs for number in run.producer_seqs() or ()
            )
            self.flush()

    def hang_up(self) -> None:
        self.session.send_close()
        super().hang_up()


class SyslogFactory(SessionFactory):
    """The factory of connections of senders: ``endpoint.listen(SyslogFactory(broker))``."""

    protocol = SyslogProtocol
    defaults = SyslogSettings()
    events = EVENTS
    refusals = REFUSALS
    settings: SyslogSettings


class SyslogDatagrams(UDPServerProtocol):
    """The protocol of a UDP port, on which each datagram is a message; what cannot be stored is dropped and counted."""

    name = PROTOCOL
    log: ClassVar[Logger] = Logger()

    def __init__(self, broker: IBroker, settings: SyslogSettings, reactor: Any) -> None:
        super().__init__(broker, settings, reactor, EVENTS, REFUSALS)
        self._received: dict[Address, list[bytes]] = {}

    # Called by the port.

    def datagrams_received(self, data: memoryview, segment: int, source: Address) -> None:
        if self.drained is None:
            datagrams = (bytes(data[at : at + segment]) for at in range(0, len(data), segment))
            self._received.setdefault(source, []).extend(filter(None, datagrams))

    def turn_over(self) -> None:
        """Publish the datagrams of this turn, as far as their senders may."""
        received, self._received = self._received, {}
        allowed: list[Run] = []
        for (host, port), payloads in received.items():
            permits = self.identified(host).permits
            for run in self.settings.runs(payloads, (), f"{host}:{port}", None, self.reactor.seconds()):
                if permits(Action.PUBLISH, run.stream):
                    allowed.append(run)
                else:
                    self._drop([run], Forbidden(f"publishing to {run.stream!r} is not allowed"))
        if allowed:
            self._publish(allowed)

    # Helpers.

    def _publish(self, runs: list[Run], own: Sequence[Run] = ()) -> None:
        """Publish *runs*, or the halves of them if one message is refused, which becomes a dead letter."""
        if self.journal_behind:
            self._count(runs, "journal-behind", "the journal is behind")
            return
        try:
            self.publish(runs, own=own)
        except (PublishError, Forbidden) as error:
            if own or not letters.keeps(self.settings.refused, error):
                self._drop(runs or own, error)
            elif sum(map(len, runs)) > 1:
                for half in halves(runs):
                    self._publish(half)
            else:
                self.counters.refuse(self.log, PROTOCOL, "dead-letters", str(runs[0].producer), str(error))
                self._publish([], [letters.letter(PROTOCOL, runs[0], error)])

    def _drop(self, runs: Iterable[Run], error: FyrehoseError) -> None:
        self._count(runs, type(error).__name__, str(error))

    def _count(self, runs: Iterable[Run], cause: str, detail: str) -> None:
        """Count the messages of *runs* as dropped, and log it at most once a second."""
        for run in runs:
            self.counters.refuse(self.log, PROTOCOL, cause, str(run.producer), detail)
            self.counters.add(PROTOCOL, cause, len(run) - 1)
