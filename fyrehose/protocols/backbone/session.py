"""The two sides of the backbone, without I/O: turn received datagrams into events, and queue datagrams to send.

The server checks each datagram, and applies the rules and limits:

    PUSH            -> Pushed, within the rate of its address
    KEEPALIVE       -> a place in the table and an ACK, if ADDR is the source address; Replay of records held back
    REQUEST         -> a FORWARD to the client whose turn it is; Replay if it is the turn of the server's own journal,
                       if the client repeats a REQUEST or has a ration, or if there were many FORWARDs; Dropped without
                       a recent KEEPALIVE
    anything else   -> Dropped; errors are not answered

The client subscribes, publishes, or answers requests of other clients:

    every second     KEEPALIVE -> KEEPALIVE-ACK with the same token; without one for some time, the backbone is lost
    move             the owner has bound another port, or found another address of a lost backbone: continue there
    DELIVER          -> Run, in order; a gap -> REQUESTs -> Run or RecordsSkipped
    push             -> PUSH -> its DELIVER -> PushConfirmed; PushTimedOut if no DELIVER arrives
    FORWARD          -> DELIVERs of stored records, to the client for which the backbone requests them

Specification: fyrehose-backbone.txt, RULES (BACKBONE) 1 to 5 and RULES (CLIENT) 1 to 6.  Times are monotonic, in
seconds, and passed as arguments.

in: receive_datagrams(train, source, now), tick(now)      out: events; data_to_send() -> (train, destination) each
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Generic, TypeVar

import attrs

from fyrehose.errors import LocalProtocolError, RemoteProtocolError
from fyrehose.identity import Action, in_networks
from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import (
    HEADER,
    KEEPALIVE,
    MAX_DATA,
    MAX_SEQUENCES,
    MAX_UNFRAGMENTED,
    TOKEN,
    Address,
    Flags,
    Forward,
    Frame,
    KeepAlive,
    KeepAliveAck,
    Request,
    can_receive,
    decode,
    first_seq,
)
from fyrehose.protocols.backbone.gso_batches import Train, serialize_delivers, serialize_pushes, single
from fyrehose.protocols.backbone.pushes import Pushes
from fyrehose.protocols.backbone.ranges import Range
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.protocols.backbone.repair import RecentRuns, RecordsSkipped, Repair
from fyrehose.protocols.backbone.restarts import RestartCheck
from fyrehose.protocols.backbone.settings import BackboneSettings
from fyrehose.protocols.backbone.subscribers import KnownClient, Rotation, Subscribers
from fyrehose.records import Buffer, Column, Run

E = TypeVar("E")


@attrs.frozen(kw_only=True, slots=True)
class Dropped:
    """``count`` datagrams of ``source`` were dropped.

    :ivar cause: names a counter; it contains nothing that a peer has sent
    """

    source: Address
    cause: str
    detail: str = ""
    count: int = 1


class BackboneSession(Generic[E]):
    """The protocol state of one side, client or server; ``E`` is the type of its events besides :class:`Dropped`."""

    def __init__(self) -> None:
        self._to_send: list[tuple[Train, Address]] = []

    def receive_datagrams(self, data: Buffer, segment: int, source: Address, now: float) -> list[E | Dropped]:
        """Process datagrams from *source*.

        :param data: datagrams of *segment* bytes each; the last may be shorter
        """
        view = memoryview(data)
        events: list[E | Dropped] = [] if len(view) else [Dropped(source=source, cause="empty")]
        at = 0
        while at < len(view):
            end = self._messages(events, view, at, segment, source, now)
            if end == at:
                end = min(at + segment, len(view))
                try:
                    self._control(events, decode(view[at:end]), source, now)
                except RemoteProtocolError as error:
                    detail = str(error).removeprefix(error.cause).removeprefix(": ")
                    events.append(Dropped(source=source, cause=error.cause, detail=detail))
            at = end
        return events

    def data_to_send(self) -> list[tuple[Train, Address]]:
        """Return the trains to send and their destinations, each once, in order."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def _messages(
        self, events: list[E | Dropped], view: memoryview, at: int, segment: int, source: Address, now: float
    ) -> int:
        """Process the messages at the start of ``view[at:]``; return where they end, or *at* if no message is there."""
        raise NotImplementedError

    def _control(self, events: list[E | Dropped], frame: Frame, source: Address, now: float) -> None:
        """Process a frame that is no message.

        :raises RemoteProtocolError: the frame is dropped
        """
        raise NotImplementedError


#: An equal REQUEST that arrives within this time is a duplicate, in seconds.
MERGE = 0.1
#: Maximum number of REQUESTs that are remembered to find duplicates.
MERGED = 4_096
#: Bytes that a client with a ration may be sent for each byte received from it.
AMPLIFICATION = 3
#: A REQUEST counts as this many more records than it asks for, because the REQUEST itself causes work.
REQUEST_COST = 20
#: A destination may receive at once what its rate permits in this time, in seconds; a receive buffer can hold that.
BURST = 1 / 16


@attrs.frozen(kw_only=True, slots=True)
class Pushed(Column):
    """Received messages, which the server has to publish.

    :ivar large: number of messages that IP had to fragment
    """

    source: Address
    large: int


@attrs.frozen(kw_only=True, slots=True)
class Replay:
    """The server has to deliver ``first`` to ``last`` to ``destination`` from its own journal."""

    destination: Address
    first: int
    last: int


ServerEvent = Pushed | Replay | Dropped


class BackboneServerSession(BackboneSession[Pushed | Replay]):
    """The protocol state of a server.

    :param bounds: returns the oldest and the last durable sequence of the stream
    :param is_own: returns whether an address is that of the server itself
    :param random: shuffles the order in which clients receive FORWARDs
    :param permits: returns whether the access policy permits a host to publish to the stream, or to subscribe to it
    :ivar subscribers: all live clients
    :ivar sent_bytes: limits the bytes to each host
    """

    def __init__(
        self,
        settings: BackboneSettings,
        bounds: Callable[[], tuple[int, int]],
        is_own: Callable[[Address], bool],
        random: Random,
        permits: Callable[[str, Action], bool],
    ) -> None:
        super().__init__()
        self._settings = settings
        self._bounds = bounds
        self._is_own = is_own
        self._permits = permits
        self.subscribers = Subscribers(settings.subscribers)
        self.sent_bytes = Rates(settings.destination_rate, settings.destination_rate * BURST)
        self._rotation = Rotation(random)
        self._pushes = Rates(settings.push_rate, settings.push_rate)
        # REQUESTs are accepted only from clients in the table, so each of these has a bucket of its own.
        self._requests = Rates(settings.request_rate, settings.request_rate, most=2 * settings.subscribers)
        self._forwards = Rates(settings.forward_rate, settings.forward_rate, most=1)
        self._recent_requests: OrderedDict[Request, float] = OrderedDict()

    def change(self, settings: BackboneSettings) -> None:
        """Use other settings, of the same stream, from now on; clients stay in the table and keep their rations."""
        self._settings = settings
        self.subscribers.change(settings.subscribers)
        self.sent_bytes.change(settings.destination_rate, settings.destination_rate * BURST)
        self._pushes.change(settings.push_rate, settings.push_rate)
        self._requests.change(settings.request_rate, settings.request_rate)
        self._requests.most = 2 * settings.subscribers

    def ration(self, client: KnownClient, trains: tuple[Train, ...], ranges: Iterable[Range]) -> tuple[Train, ...]:
        """Return the part of *trains* that *client* may be sent now, and hold the rest back until its next KEEPALIVE.

        :param ranges: the sequences of *trains*
        """
        if client.credit is None:
            return trains
        allowed = []
        for train in trains:
            part = train.first(client.credit // train.segment)
            if part.count:
                client.credit -= part.size
                allowed.append(part)
            if part.count < train.count:
                held = first_seq(train.data, part.size)
                for first, last in ranges:
                    client.hold(max(first, held), last)
                break
        return tuple(allowed)

    # Received datagrams.

    def _messages(
        self, events: list[ServerEvent], view: memoryview, at: int, segment: int, source: Address, now: float
    ) -> int:
        """Process PUSHes, which need no KEEPALIVE (rule 5 of the backbone)."""
        total_length = self._settings.total_length
        end, count, lengths, payload = backbone.scan_pushes(view, at, len(view), segment, total_length)
        if not count:
            return at
        if not self._permits(source[0], Action.PUBLISH):
            detail = "the access policy does not permit this address to publish"
            events.append(Dropped(source=source, cause="Forbidden", detail=detail, count=count))
            return end
        granted = self._pushes.take(source[0], count, now)
        if granted < count:
            events.append(Dropped(source=source, cause="push-rate", count=count - granted))
            if not granted:
                return end
            lengths = lengths[: 4 * granted]
            payload = payload[: sum(memoryview(lengths).cast("I"))]
        client = self.subscribers.find(source, now)
        if client is not None and client.credit is not None:
            client.credit += AMPLIFICATION * (len(payload) + HEADER * granted)
        large = 0
        if segment > HEADER + MAX_UNFRAGMENTED:
            large = sum(size > MAX_UNFRAGMENTED for size in memoryview(lengths).cast("I"))
        events.append(Pushed(source=source, lengths=lengths, payload=payload, large=large))
        return end

    def _control(self, events: list[ServerEvent], frame: Frame, source: Address, now: float) -> None:
        if isinstance(frame, KeepAlive):
            self._keep_alive(events, frame, source, now)
        elif isinstance(frame, Request):
            self._request(events, frame, source, now)
        else:
            raise RemoteProtocolError("not-for-servers", type(frame).__name__)

    def _keep_alive(self, events: list[ServerEvent], frame: KeepAlive, source: Address, now: float) -> None:
        client = self._own_address(frame.address, source)
        ack = KeepAliveAck(token=frame.token).serialize()
        trusted = in_networks(source[0], self._settings.trusted)
        credit = None if trusted else AMPLIFICATION * KEEPALIVE - len(ack)
        seen = self.subscribers.keep_alive(client, frame.flags, now, credit)
        if not seen.admitted:
            # Send no ACK, because the client would take it for a successful subscription.
            why = self._places_taken("its own address holds as many as any other")
            raise RemoteProtocolError("too-many-subscribers", why)
        self._to_send.append((single(ack), client))
        events.extend(Replay(destination=client, first=first, last=last) for first, last in seen.held)
        if seen.displaced is not None:
            why = self._places_taken(f"its address holds the most: {source[0]} gets the place")
            events.append(Dropped(source=seen.displaced, cause="subscriber-displaced", detail=why))

    def _places_taken(self, why: str) -> str:
        return f"all {self._settings.subscribers} places are taken, and {why}; raise backbone.subscribers"

    def _request(self, events: list[ServerEvent], frame: Request, source: Address, now: float) -> None:
        requester = self._own_address(frame.address, source)
        client = self.subscribers.find(requester, now)
        if client is None:
            raise RemoteProtocolError(
                "request-without-keepalive", f"no KEEPALIVE for port {requester[1]} has arrived for 5 s"
            )
        frame = Request(address=requester, first=frame.first, last=frame.last)
        if self._is_repeated(frame, now):
            raise RemoteProtocolError("request-repeated")
        oldest, newest = self._bounds()
        first = max(frame.first, oldest)
        last = min(frame.last, newest, first + MAX_SEQUENCES - 1)
        if not self._requests.spend(requester, REQUEST_COST + max(last - first + 1, 0), now):
            raise RemoteProtocolError("request-rate")
        if first > last:
            raise RemoteProtocolError("request-of-nothing")
        peer = None
        # A client that receives a FORWARD does not know whether the requester has a ration, so the server itself
        # answers requesters with a ration.
        if client.credit is None and not client.repeats(first, last, now) and self._forwards.take("all", 1, now):
            peer = self._rotation.next([None, *self.subscribers.journals(now)], requester)
        if peer is None:
            events.append(Replay(destination=requester, first=first, last=last))
        else:
            self._to_send.append((single(Forward(address=requester, first=first, last=last).serialize()), peer))

    # Checks.

    def _own_address(self, claimed: Address, source: Address) -> Address:
        """Return the address that a client claims in ADDR and PORT, if it is valid.

        The protocol has no proof of an address, so ADDR must be the source address, or 0.0.0.0, which stands for it;
        PORT 0 stands for the source port.

        :raises RemoteProtocolError: the client may not claim this address, or may not subscribe
        """
        host, port = claimed
        if not self._permits(source[0], Action.SUBSCRIBE):
            raise RemoteProtocolError("Forbidden", "the access policy does not permit this address to subscribe")
        if host not in (source[0], "0.0.0.0"):
            raise RemoteProtocolError("foreign-address")
        client = (source[0], port or source[1])
        if not can_receive(client):
            raise RemoteProtocolError("impossible-address")
        if self._is_own(client):
            raise RemoteProtocolError("own-address")
        return client

    def _is_repeated(self, request: Request, now: float) -> bool:
        while self._recent_requests:
            oldest, at = next(iter(self._recent_requests.items()))
            if now - at < MERGE and len(self._recent_requests) < MERGED:
                break
            del self._recent_requests[oldest]
        if request in self._recent_requests:
            return True
        self._recent_requests[request] = now
        return False


#: Interval of KEEPALIVEs, in seconds (rule 1 of the client).
KEEPALIVE_INTERVAL = 1.0
#: Time without an ACK after which the backbone is lost, in seconds (rule 2 of the backbone).
LOST = 5.0
#: Interval of KEEPALIVEs while the backbone does not answer, in seconds.
SEARCH = 0.5
#: ADDR and PORT that stand for the address from which a datagram comes, which a client behind NAT does not know.
SENDER: Address = ("0.0.0.0", 0)
#: Number of recent KEEPALIVEs whose tokens an ACK may repeat.
TOKENS = 10
#: How many REQUESTs the client sends per second; neighbouring gaps share a REQUEST.
REQUESTS = 8
#: After a lost backbone answers again, a missed record that has the same bytes as a new push would confirm that push.
#: So new pushes wait for the missed records: until none has arrived for HOLD seconds, or MOST_HOLD seconds at most.
HOLD = 0.25
MOST_HOLD = 2.0
#: A record that comes again although it was known at this many KEEPALIVEs ago may be one of another journal.
REMEMBERED = 6
#: Delay before the next tick while the rate of REQUESTs is exhausted, in seconds.
SOON = 0.05


@attrs.frozen(kw_only=True)
class BackboneOptions:
    """The options of a client: whether it subscribes and stores records, and its limits.

    :ivar subscribe: whether the client receives DELIVERs; without them no push can be confirmed
    :ivar store: how many bytes of records the client stores for other clients; 0: none, and the flag NOJOURNAL tells
        the backbone so
    :ivar window: maximum number of unconfirmed pushes
    :ivar window_bytes: maximum size of unconfirmed pushes together, in bytes
    :ivar pace: pushes per second; a server accepts 50,000 from one address
    :ivar timeout: how long a push waits for its DELIVER, in seconds
    :ivar retries: how often to push again after the timeout
    """

    subscribe: bool = True
    store: int = 0
    window: int = 1_024
    window_bytes: int = 512 << 10
    pace: int = 40_000
    timeout: float = 5.0
    retries: int = 0


@attrs.frozen(kw_only=True, slots=True)
class PushConfirmed:
    """The push with this ``handle`` is published; its sequence is ``seq``."""

    handle: Any
    seq: int


@attrs.frozen(kw_only=True, slots=True)
class PushTimedOut:
    """The DELIVER of the push with this ``handle`` has not arrived in time; the message may or may not be published."""

    handle: Any


@attrs.frozen(kw_only=True, slots=True)
class Found:
    """The backbone acknowledges KEEPALIVEs, for the first time or again."""


@attrs.frozen(kw_only=True, slots=True)
class BackboneLost:
    """The backbone has not acknowledged a KEEPALIVE in time."""


@attrs.frozen(kw_only=True, slots=True)
class JournalReplaced:
    """The backbone has another journal, because its sequences have begun again; its records follow from the start.

    :ivar end: the last sequence of that journal, as far as the client knows
    :ivar highest: the highest sequence of the old one
    """

    end: int
    highest: int


#: A Run has records in order, each once.  Its ``stream`` and ``source`` are always "backbone" and its ``time`` is 0,
#: because a DELIVER has none of these.
ClientEvent = Run | RecordsSkipped | PushConfirmed | PushTimedOut | Found | BackboneLost | JournalReplaced | Dropped


class BackboneClientSession(
    BackboneSession[Run | RecordsSkipped | PushConfirmed | PushTimedOut | Found | BackboneLost | JournalReplaced]
):
    """The protocol state of a client.

    ADDR and PORT are 0, which stands for the sender, if the backbone accepts that.  The specification does not mention
    it, so while the backbone does not answer, every second KEEPALIVE has the address of the client's port; the first
    KEEPALIVE that is acknowledged decides.

    :param server: the address of the backbone
    :param address: the address of the client's port
    :param random: generates tokens
    :param after: start after this sequence (0: from the oldest record); None: with the first DELIVER that arrives.
        With ``after`` the client cannot publish, because an old record with the same bytes would confirm the push
    :param silence: time without an ACK after which the backbone is lost, in seconds
    :ivar found: whether the backbone acknowledges KEEPALIVEs at present
    :ivar repair: the order of the received records, and what is missing
    :ivar pushes: the pushes that are not confirmed
    """

    def __init__(
        self,
        server: Address,
        address: Address,
        options: BackboneOptions,
        random: Random,
        now: float,
        after: int | None = None,
        silence: float = LOST,
    ) -> None:
        super().__init__()
        self._server = server
        self._address = address
        self._options = options
        self._random = random
        self._flags = Flags.NONE if options.subscribe else Flags.NOSUBSCRIBE
        if not options.store:
            self._flags |= Flags.NOJOURNAL
        self._after = after
        self.repair = Repair(after)
        self._store = RecentRuns(options.store)
        pace = Rates(options.pace, max(64, options.pace // 50), most=1)
        self.pushes = Pushes(options.window, options.window_bytes, options.timeout, options.retries, pace)
        self._requests = Rates(REQUESTS, REQUESTS / 2, most=1)
        #: the tokens of recent KEEPALIVEs, each with the address that the KEEPALIVE claims
        self._tokens: dict[bytes, Address] = {}
        self._claimed = address
        self._next_keepalive = now
        self._last_ack = now
        self._silence = silence
        self.found = False
        self._lost = False
        self._hold = self._hold_limit = now
        self._restarts = RestartCheck()
        #: the highest sequence at the time of each recent KEEPALIVE, the oldest first
        self._known = deque((after or 0,), maxlen=REMEMBERED)

    # For the owner.

    def tick(self, now: float) -> list[ClientEvent]:
        """Run all actions that are due at *now*: KEEPALIVEs, REQUESTs, repeated pushes."""
        events: list[ClientEvent] = []
        if now >= self._next_keepalive:
            self._keep_alive(now)
        if not self._lost and self.silent(now):
            self.found, self._lost = False, True
            events.append(BackboneLost())
        events.extend(PushTimedOut(handle=push.handle) for push in self.pushes.expired(now))
        if self.found:
            self._repair_now(events, now)
            self._push_now(now)
        return events

    def silent(self, now: float) -> bool:
        """Return whether the backbone has not acknowledged a KEEPALIVE for so long that it is lost."""
        return now - self._last_ack >= self._silence

    def next_due(self, now: float) -> float:
        """Return the time at which :meth:`tick` has to be called if no datagram arrives before."""
        times = [self._next_keepalive]
        if not self._lost:
            times.append(self._last_ack + self._silence)
        repair = self.repair.next_due() if self.found and self._options.subscribe else None
        if repair is not None:
            # An overdue request still waits until the limit of REQUESTS per second permits it.
            times.append(repair if repair > now else now + SOON)
        if self._hold > now:
            times.append(self._hold)
        check = self._restarts.next_due() if self.found else None
        if check is not None:
            times.append(check)
        pushes = self.pushes.next_due(now, self.found and self._hold <= now and not self._restarts.suspects)
        if pushes is not None:
            times.append(pushes)
        return min(times)

    def move(self, server: Address, address: Address, now: float) -> None:
        """Continue with another port, or with another address of the backbone; what is missing is still known.

        :param server: the address of the backbone
        :param address: the address of the client's port
        """
        self._server, self._address = server, address
        self._claimed = address
        self._tokens.clear()
        self._next_keepalive = now

    def push(self, payload: bytes, handle: Any) -> None:
        """Publish *payload* at the next :meth:`tick`; a later PushConfirmed or PushTimedOut has *handle*.

        :raises LocalProtocolError: *payload* does not fit into a datagram, or the options exclude publishing
        """
        if len(payload) > MAX_DATA:
            raise LocalProtocolError(f"{len(payload)} bytes do not fit into a datagram; the maximum is {MAX_DATA}")
        if not self._options.subscribe:
            raise LocalProtocolError(
                "a client without BackboneOptions.subscribe cannot publish: no DELIVER would confirm it"
            )
        if self._after is not None:
            raise LocalProtocolError(
                "a client that subscribes after a sequence cannot publish, because old records would confirm its "
                "pushes; use another client"
            )
        self.pushes.add(payload, handle)

    def abandon(self) -> list[ClientEvent]:
        """Forget all unconfirmed pushes, and return a PushTimedOut for each of them."""
        return [PushTimedOut(handle=push.handle) for push in self.pushes.abandon()]

    # Received datagrams.

    def _messages(
        self, events: list[ClientEvent], view: memoryview, at: int, segment: int, source: Address, now: float
    ) -> int:
        """Process DELIVERs (rules 2 and 3 of the client).

        Any peer may answer a REQUEST; other DELIVERs are accepted only from the backbone.
        """
        end, count, first, lengths, payload = backbone.scan_delivers(view, at, len(view), segment)
        if not count:
            return at
        # DELIVER does not say by which protocol a record was published.
        run = Run(stream="backbone", source="", lengths=lengths, payload=payload, first_seq=first)
        if not self._options.subscribe:
            events.append(Dropped(source=source, cause="not-subscribed"))
        elif source != self._server and not self.repair.was_requested(run.first_seq, run.last_seq):
            events.append(Dropped(source=source, cause="not-requested"))
        else:
            if source == self._server and self._restarts.received(run):
                self._begin_again(events, now)
            new = self._deliver(events, run, now)
            if not new and source == self._server and run.last_seq <= self._known[0]:
                self._check_journal(run, now)  # an old record once more: of another journal?
        return end

    def _deliver(self, events: list[ClientEvent], run: Run, now: float) -> bool:
        """Process records; return whether any was new."""
        new, ready = self.repair.received(run, now)
        for part in new:
            self._store.add(part)
            events.extend(PushConfirmed(handle=push.handle, seq=seq) for push, seq in self.pushes.delivered(part))
        events.extend(ready)
        if new:
            if self._hold > now:
                self._hold = min(now + HOLD, self._hold_limit)
            self._push_now(now)
        return bool(new)

    def _check_journal(self, run: Run, now: float) -> None:
        """Find out whether the backbone has another journal, because it has sent the old records *run* once more."""
        if not self._restarts.highest:
            self._restarts.begin(self.repair.highest, now)
            self._restarts.received(run)

    def _begin_again(self, events: list[ClientEvent], now: float) -> None:
        """Read from the start, because the backbone has another journal."""
        check = self._restarts
        events.append(JournalReplaced(end=check.end, highest=check.highest))
        self.pushes.renumber(check.first - 1)
        check.stop()
        self.repair = Repair(0)
        self.repair.restart(now)
        self._known = deque((0,), maxlen=REMEMBERED)
        self._store = RecentRuns(self._options.store)  # Nobody may get records of the old journal.
        self._hold, self._hold_limit = now + HOLD, now + MOST_HOLD

    def _control(self, events: list[ClientEvent], frame: Frame, source: Address, now: float) -> None:
        if source != self._server:
            raise RemoteProtocolError("not-the-backbone")
        if isinstance(frame, KeepAliveAck):
            self._acknowledged(events, frame, now)
        elif isinstance(frame, Forward):
            self._forward(frame)
        else:
            raise RemoteProtocolError("not-for-clients", type(frame).__name__)

    def _acknowledged(self, events: list[ClientEvent], ack: KeepAliveAck, now: float) -> None:
        claimed = self._tokens.pop(ack.token, None)
        if claimed is None:
            raise RemoteProtocolError("unknown-token")
        self._last_ack = now
        if not self.found:
            self._claimed = claimed
            self._next_keepalive += KEEPALIVE_INTERVAL - SEARCH
            if self._lost:
                self._hold, self._hold_limit = now + HOLD, now + MOST_HOLD
            self.found, self._lost = True, False
            events.append(Found())
            self.repair.restart(now)
            self._repair_now(events, now)
            self._push_now(now)

    def _forward(self, frame: Forward) -> None:
        """Answer a FORWARD: send the stored records that *frame* names to the requester (rule 4 of the client)."""
        if frame.address == self._address or not can_receive(frame.address):
            raise RemoteProtocolError("impossible-address")
        last = min(frame.last, frame.first + MAX_SEQUENCES - 1)
        runs = tuple(self._store.read(frame.first, last))
        if runs:
            self._to_send.extend((train, frame.address) for train in serialize_delivers(runs).trains)

    # Timed actions.

    def _keep_alive(self, now: float) -> None:
        if not self.found:
            self._claimed = self._address if self._claimed == SENDER else SENDER
        token = self._random.randbytes(TOKEN)
        self._known.append(self.repair.highest)
        self._tokens[token] = self._claimed
        if len(self._tokens) > TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._next_keepalive = now + (KEEPALIVE_INTERVAL if self.found else SEARCH)
        frame = KeepAlive(address=self._claimed, flags=self._flags, token=token)
        self._to_send.append((single(frame.serialize()), self._server))

    def _repair_now(self, events: list[ClientEvent], now: float) -> None:
        if not self._options.subscribe:
            return
        events.extend(self.repair.give_up(now))
        most = self._requests.take("", REQUESTS, now)
        ranges = self.repair.due(now, most)
        self._requests.charge("", len(ranges) - most, now)
        ranges += self._restarts.due(now)
        for first, last in ranges:
            frame = Request(address=self._claimed, first=first, last=last)
            self._to_send.append((single(frame.serialize()), self._server))

    def _push_now(self, now: float) -> None:
        if not self.found or self._hold > now or self._restarts.suspects:
            return
        payloads = self.pushes.take(self.repair.highest, now)
        if payloads:
            self._to_send.extend((train, self._server) for train in serialize_pushes(payloads))
