"""The backbone's client without a socket: subscriber, publisher and journal peer, each as far as it was asked for.

    every second     KEEPALIVE -> ACK of a token of ours, or the backbone is lost after 5 s without one
    the first ACK    another KEEPALIVE at once, because a server holds back until the second
    DELIVER          -> Records, in order; a gap -> REQUESTs -> Records or Lost
    push             -> PUSH -> its DELIVER -> Confirmed, or Unconfirmed when it does not come
    FORWARD          -> DELIVERs of what is stored, straight to the requester

Specification: fyrehose-backbone.txt, rules 1 to 6 of the client.  Times are monotonic, in seconds, and arguments.

in: receive_datagrams(train, source, now), tick(now)      out: events; data_to_send() -> (train, destination) each
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import (
    MAX_DATA,
    MAX_SEQUENCES,
    TOKEN,
    Address,
    Flags,
    Forward,
    FrameType,
    KeepAlive,
    KeepAliveAck,
    Request,
    can_receive,
    decode,
)
from fyrehose.protocols.backbone.pushes import Pushes
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.protocols.backbone.repair import Lost, Repair
from fyrehose.protocols.backbone.store import Store
from fyrehose.protocols.backbone.trains import Train, encode_delivers, encode_pushes, single
from fyrehose.records import Buffer, Run

#: How often a KEEPALIVE goes out, in seconds (rule 1 of the client).
KEEPALIVE = 1.0
#: Without an ACK for so long the backbone has forgotten us, or is gone, in seconds (rule 2 of the backbone).
LOST = 5.0
#: Tokens that an ACK may still bring.
TOKENS = 5
#: REQUESTs a second: fewer than the 10 that a server takes.
REQUESTS = 8
#: When the backbone was lost and is found again, new pushes wait until what was missed has come, as far as that can be
#: known: until nothing new has come for HOLD seconds, but no longer than MOST_HOLD.
HOLD = 0.25
MOST_HOLD = 2.0
#: How soon to look again when there is more to ask for than may be asked, in seconds.
SOON = 0.05


@attrs.frozen(kw_only=True)
class Options:
    """What a client is.

    :ivar after: begin with what follows this number (0: from the start); None: with what comes first.  Such a client
        cannot publish: an old record of the same bytes would confirm the push
    :ivar subscribe: whether to be sent DELIVERs; without them no push can be confirmed
    :ivar store: bytes to keep for others that miss them; 0: be no journal
    :ivar window: pushes on their way at a time
    :ivar window_bytes: and how large they may be together, in bytes
    :ivar pace: pushes a second; a server takes 50,000 from one address
    :ivar timeout: how long a push waits for its DELIVER, in seconds
    :ivar retries: how often to push again after that
    """

    after: int | None = None
    subscribe: bool = True
    store: int = 0
    window: int = 1_024
    window_bytes: int = 512 << 10
    pace: int = 40_000
    timeout: float = 5.0
    retries: int = 0


@attrs.frozen(kw_only=True, slots=True)
class Records:
    """Records that follow on, never one twice; their ``stream`` and ``source`` are the backbone's, ``time`` is 0."""

    run: Run


@attrs.frozen(kw_only=True, slots=True)
class Confirmed:
    """The push of ``handle`` is published, under ``seq``."""

    handle: Any
    seq: int


@attrs.frozen(kw_only=True, slots=True)
class Unconfirmed:
    """The push of ``handle`` was not seen again in time: it may be published, or not."""

    handle: Any


@attrs.frozen(kw_only=True, slots=True)
class Found:
    """The backbone acknowledges KEEPALIVEs (again)."""


@attrs.frozen(kw_only=True, slots=True)
class BackboneLost:
    """The backbone has not acknowledged a KEEPALIVE for 5 s."""


@attrs.frozen(kw_only=True, slots=True)
class Ignored:
    """A datagram was not taken; ``cause`` names a counter."""

    cause: str


Event = Records | Lost | Confirmed | Unconfirmed | Found | BackboneLost | Ignored


class ClientSession:
    """All state of a backbone client.

    :param backbone: where the server is
    :param address: where we are, as the server sees us
    """

    def __init__(self, server: Address, address: Address, options: Options, random: Random, now: float) -> None:
        self._server = server
        self._address = address
        self._options = options
        self._random = random
        self._flags = Flags.NONE if options.subscribe else Flags.NOSUBSCRIBE
        if not options.store:
            self._flags |= Flags.NOJOURNAL
        self._repair = Repair(options.after)
        self._store = Store(options.store)
        pace = Rates(options.pace, max(64, options.pace // 50), most=1)
        self._pushes = Pushes(options.window, options.window_bytes, options.timeout, options.retries, pace)
        self._requests = Rates(REQUESTS, REQUESTS / 2, most=1)
        self._tokens: deque[bytes] = deque(maxlen=TOKENS)
        self._next_keepalive = now
        self._heard = now
        self._found = False
        self._lost = False
        self._hold = self._hold_limit = now
        self._to_send: list[tuple[Train, Address]] = []

    # In.

    def receive_datagrams(self, data: Buffer, segment: int, source: Address, now: float) -> list[Event]:
        """Datagrams of ``segment`` bytes each (the last may be shorter) that came from ``source``."""
        view = memoryview(data)
        stop = len(view)
        events: list[Event] = []
        at = 0
        while at < stop:
            end, count, first, lengths, payload = backbone.scan_delivers(view, at, stop, segment)
            if count:
                run = Run(stream="backbone", source="backbone", lengths=lengths, payload=payload, first_seq=first)
                self._deliver(events, run, source, now)
            else:
                end = min(at + segment, stop)
                self._control(events, view[at:end], source, now)
            at = end
        return events

    def tick(self, now: float) -> list[Event]:
        """Time has passed: to be called when :meth:`next_due` says, or later."""
        events: list[Event] = []
        if now >= self._next_keepalive:
            self._keep_alive(now)
        if not self._lost and now - self._heard >= LOST:
            self._found, self._lost = False, True
            events.append(BackboneLost())
        events.extend(Unconfirmed(handle=push.handle) for push in self._pushes.expired(now))
        if self._found:
            self._repair_now(events, now)
            self._push_now(now)
        return events

    def next_due(self, now: float) -> float:
        """When :meth:`tick` has something to do, if nothing comes in before."""
        times = [self._next_keepalive]
        if not self._lost:
            times.append(self._heard + LOST)
        repair = self._repair.next_due() if self._found and self._options.subscribe else None
        if repair is not None:
            # What is due already waits for the rate of requests.
            times.append(repair if repair > now else now + SOON)
        if self._hold > now:
            times.append(self._hold)
        pushes = self._pushes.next_due(now, self._found and self._hold <= now)
        if pushes is not None:
            times.append(pushes)
        return min(times)

    # Out.

    def push(self, payload: bytes, handle: Any) -> None:
        """Publish ``payload`` at the next :meth:`tick`; an event tells what becomes of ``handle``.

        :raises LocalProtocolError: it does not fit into a datagram, or its DELIVER would not be known for sure
        """
        if len(payload) > MAX_DATA:
            raise LocalProtocolError(f"{len(payload)} bytes do not fit into a datagram; {MAX_DATA} do")
        if not self._options.subscribe:
            raise LocalProtocolError("a client that does not subscribe cannot see its pushes confirmed")
        if self._options.after is not None:
            raise LocalProtocolError("a client that catches up cannot publish: old records would confirm; use another")
        self._pushes.add(payload, handle)

    def data_to_send(self) -> list[tuple[Train, Address]]:
        """Each train and where to, once."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def abandon(self) -> list[Event]:
        """Nothing more comes in: what has not been confirmed never is."""
        return [Unconfirmed(handle=push.handle) for push in self._pushes.abandon()]

    # State that its owner may ask for.

    @property
    def position(self) -> int | None:
        """The last number that was delivered or given up; None before the first."""
        return self._repair.position

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges that are known to be missing."""
        return self._repair.missing

    @property
    def duplicates(self) -> int:
        """How many DELIVERs came more than once, or came when there was no room for them."""
        return self._repair.duplicates

    @property
    def has_room(self) -> bool:
        """Whether the window has room for another push."""
        return self._pushes.has_room

    @property
    def unsent(self) -> int:
        """What waits for room in the window, in bytes."""
        return self._pushes.unsent

    @property
    def idle(self) -> bool:
        """Whether every push is settled."""
        return self._pushes.idle

    # The datagrams.

    def _deliver(self, events: list[Event], run: Run, source: Address, now: float) -> None:
        """Rules 2 and 3.  Anybody may answer what we asked for; all else is the backbone's to say."""
        if not self._options.subscribe:
            events.append(Ignored(cause="not-subscribed"))
            return
        if source != self._server and not self._repair.wants(run.first_seq, run.last_seq):
            events.append(Ignored(cause="not-asked-for"))
            return
        new, ready = self._repair.received(run, now)
        for part in new:
            self._store.add(part)
            events.extend(Confirmed(handle=push.handle, seq=seq) for push, seq in self._pushes.delivered(part))
        events.extend(Records(run=part) for part in ready)
        if new:
            if self._hold > now:
                self._hold = min(now + HOLD, self._hold_limit)
            self._push_now(now)

    def _control(self, events: list[Event], datagram: memoryview, source: Address, now: float) -> None:
        try:
            frame = decode(datagram)
            if source != self._server:
                raise RemoteProtocolError("not-the-backbone")
            if isinstance(frame, KeepAliveAck):
                self._acknowledged(events, frame, now)
            elif isinstance(frame, Forward):
                self._forward(frame)
            else:
                raise RemoteProtocolError("not-for-clients", FrameType(datagram[0]).name)
        except RemoteProtocolError as error:
            events.append(Ignored(cause=error.cause))

    def _acknowledged(self, events: list[Event], ack: KeepAliveAck, now: float) -> None:
        if ack.token not in self._tokens:
            raise RemoteProtocolError("unknown-token")
        self._tokens.remove(ack.token)
        self._heard = now
        if not self._found:
            if self._lost:
                self._hold, self._hold_limit = now + HOLD, now + MOST_HOLD
            self._found, self._lost = True, False
            self._keep_alive(now)
            events.append(Found())
            self._repair.restart(now)
            self._repair_now(events, now)
            self._push_now(now)

    def _forward(self, frame: Forward) -> None:
        """Rule 4."""
        if frame.address == self._address or not can_receive(frame.address):
            raise RemoteProtocolError("impossible-address")
        last = min(frame.last, frame.first + MAX_SEQUENCES - 1)
        runs = tuple(self._store.read(frame.first, last))
        if runs:
            self._to_send.extend((train, frame.address) for train in encode_delivers(runs).trains)

    # What time brings.

    def _keep_alive(self, now: float) -> None:
        token = self._random.randbytes(TOKEN)
        self._tokens.append(token)
        self._next_keepalive = now + KEEPALIVE
        frame = KeepAlive(address=self._address, flags=self._flags, token=token)
        self._to_send.append((single(frame.encode()), self._server))

    def _repair_now(self, events: list[Event], now: float) -> None:
        if not self._options.subscribe:
            return
        for passed in self._repair.give_up(now):
            events.append(passed if isinstance(passed, Lost) else Records(run=passed))
        most = self._requests.take("", REQUESTS, now)
        ranges = self._repair.due(now, most)
        self._requests.charge("", len(ranges) - most, now)
        for first, last in ranges:
            frame = Request(address=self._address, first=first, last=last)
            self._to_send.append((single(frame.encode()), self._server))

    def _push_now(self, now: float) -> None:
        if not self._found or self._hold > now:
            return
        payloads = self._pushes.take(self._repair.highest, now)
        if payloads:
            self._to_send.extend((train, self._server) for train in encode_pushes(payloads))
