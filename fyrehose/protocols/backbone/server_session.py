"""The server's side of the backbone, without I/O: rules and limits.

    PUSH            -> Pushed, within the rate of its address
    KEEPALIVE       -> a place in the table and an ACK, if ADDR is the source address; the second KEEPALIVE also brings
                       the records that were held back
    REQUEST         -> a FORWARD to the client whose turn it is; Replay if it is the turn of the server's own journal,
                       or if the client repeats a REQUEST; Dropped without a recent KEEPALIVE
    anything else   -> Dropped; errors are not answered

Specification: fyrehose-backbone.txt, RULES (BACKBONE) 1 to 5.  Times are monotonic, in seconds, and passed as
arguments.

in: receive_datagrams(train, source, now)      out: events; data_to_send() -> (destination, datagram) each
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from random import Random

import attrs

from fyrehose.errors import RemoteProtocolError
from fyrehose.identity import Action
from fyrehose.kernels import backbone
from fyrehose.protocols.backbone.frames import (
    HEADER,
    KEEPALIVE,
    MAX_SEQUENCES,
    MAX_UNFRAGMENTED,
    Address,
    Forward,
    FrameType,
    KeepAlive,
    KeepAliveAck,
    Request,
    can_receive,
    decode,
    first_seq,
)
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.protocols.backbone.settings import Settings
from fyrehose.protocols.backbone.subscribers import Client, Rotation, Subscribers
from fyrehose.protocols.backbone.trains import Train
from fyrehose.records import Buffer

#: An equal REQUEST within this time is a duplicate, in seconds.
MERGE = 0.1
#: Maximum number of REQUESTs that are remembered to find duplicates.
MERGED = 4_096
#: Bytes that a client may be sent for each byte received from it, before its second KEEPALIVE.
AMPLIFICATION = 3
#: Burst of a destination, as its rate times this, in seconds; receive buffers can hold it.
BURST = 1 / 16


@attrs.frozen(kw_only=True, slots=True)
class Pushed:
    """Messages to publish, as columns.

    :ivar lengths: their lengths, 32-bit integers in native byte order
    :ivar payload: the messages, concatenated
    :ivar large: number of messages that IP had to fragment
    """

    source: Address
    lengths: bytes
    payload: bytes
    large: int


@attrs.frozen(kw_only=True, slots=True)
class Replay:
    """The server has to deliver ``first`` to ``last`` to ``destination`` from its own journal."""

    destination: Address
    first: int
    last: int


@attrs.frozen(kw_only=True, slots=True)
class Dropped:
    """``count`` datagrams of ``source`` were dropped.

    :ivar cause: names a counter; it contains nothing that a peer has sent
    """

    source: Address
    cause: str
    detail: str = ""
    count: int = 1


Event = Pushed | Replay | Dropped


class ServerSession:
    """The protocol state of a server.

    :param bounds: returns the oldest and the last durable sequence of the stream
    :param is_own: returns whether an address is that of the server itself
    :param random: shuffles the turns of the clients that receive FORWARDs
    :param permits: returns whether the access policy permits a host to publish to the stream, or to subscribe to it
    """

    def __init__(
        self,
        settings: Settings,
        bounds: Callable[[], tuple[int, int]],
        is_own: Callable[[Address], bool],
        random: Random,
        permits: Callable[[str, Action], bool],
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._is_own = is_own
        self._subscribers = Subscribers(settings.subscribers)
        self._new_clients = self._subscribers.new_clients
        self._rotation = Rotation(random)
        self._pushes = Rates(settings.push_rate, settings.push_rate)
        self._requests = Rates(settings.request_rate, settings.request_rate)
        self._forwards = Rates(settings.forward_rate, settings.forward_rate, most=1)
        self._bytes = Rates(settings.destination_rate, settings.destination_rate * BURST)
        self._recent_requests: OrderedDict[Request, float] = OrderedDict()
        self._permits = permits
        self._to_send: list[tuple[Address, bytes]] = []

    def receive_datagrams(self, data: Buffer, segment: int, source: Address, now: float) -> list[Event]:
        """Process datagrams from *source*.

        :param data: datagrams of *segment* bytes each; the last may be shorter
        """
        view = memoryview(data)
        stop = len(view)
        events: list[Event] = []
        if not stop:
            return [Dropped(source=source, cause="empty")]
        at = 0
        while at < stop:
            end, count, lengths, payload = backbone.scan_pushes(view, at, stop, segment, self._settings.total_length)
            if count:
                self._push(events, source, lengths, payload, segment, now)
            else:
                end = min(at + segment, stop)
                self._control(events, view[at:end], source, now)
            at = end
        return events

    def data_to_send(self) -> list[tuple[Address, bytes]]:
        """Return the ACKs and FORWARDs to send, each once, with their destinations."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def established(self, now: float) -> list[Address]:
        """Return the subscribers that receive every DELIVER."""
        return self._subscribers.established(now)

    def newcomers(self, now: float) -> list[tuple[Address, Client]]:
        """Return the subscribers that receive DELIVERs as :meth:`ration` allows, until their second KEEPALIVE."""
        return self._subscribers.newcomers(now)

    def ration(self, newcomer: Client, trains: tuple[Train, ...], last: int) -> list[Train]:
        """Return as much of *trains* as the credit of *newcomer* covers, and hold the rest for its second KEEPALIVE.

        :param last: the sequence of the last record in *trains*
        """
        assert newcomer.credit is not None
        allowed = []
        for train in trains:
            count = min(train.count, newcomer.credit // train.segment)
            part = train.first(count)
            newcomer.credit -= part.size
            if count:
                allowed.append(part)
            if count < train.count:
                newcomer.hold(first_seq(train.data, part.size), last)
                break
        return allowed

    def ready(self, destination: Address, now: float) -> bool:
        """Return whether the rate of its host permits sending to *destination* now."""
        return self._bytes.ready(destination[0], now)

    def charge(self, destination: Address, size: int, now: float) -> None:
        """Charge *size* bytes that are sent to *destination* to the rate of its host."""
        self._bytes.charge(destination[0], size, now)

    # Received datagrams.

    def _push(
        self, events: list[Event], source: Address, lengths: bytes, payload: bytes, segment: int, now: float
    ) -> None:
        """Process PUSHes, which need no KEEPALIVE (rule 5 of the backbone).

        :param segment: upper bound of the size of their datagrams
        """
        count = len(lengths) // 4
        if not self._permits(source[0], Action.PUBLISH):
            detail = "the access policy does not permit it to publish"
            events.append(Dropped(source=source, cause="Forbidden", detail=detail, count=count))
            return
        granted = self._pushes.take(source[0], count, now)
        if granted < count:
            events.append(Dropped(source=source, cause="push-rate", count=count - granted))
            if not granted:
                return
            lengths = lengths[: 4 * granted]
            payload = payload[: sum(memoryview(lengths).cast("I"))]
        newcomer = self._new_clients.get(source) if self._new_clients else None
        if newcomer is not None and newcomer.credit is not None:
            newcomer.credit += AMPLIFICATION * (len(payload) + HEADER * granted)
        large = 0
        if segment > HEADER + MAX_UNFRAGMENTED:
            large = sum(size > MAX_UNFRAGMENTED for size in memoryview(lengths).cast("I"))
        events.append(Pushed(source=source, lengths=lengths, payload=payload, large=large))

    def _control(self, events: list[Event], datagram: memoryview, source: Address, now: float) -> None:
        try:
            frame = decode(datagram)
            if isinstance(frame, KeepAlive):
                events.extend(self._keep_alive(frame, source, now))
            elif isinstance(frame, Request):
                events.extend(self._request(frame, source, now))
            else:
                raise RemoteProtocolError("not-for-servers", FrameType(datagram[0]).name)
        except RemoteProtocolError as error:
            detail = str(error).removeprefix(error.cause).removeprefix(": ")
            events.append(Dropped(source=source, cause=error.cause, detail=detail))

    def _keep_alive(self, frame: KeepAlive, source: Address, now: float) -> list[Event]:
        client = self._own_address(frame.address, source)
        ack = KeepAliveAck(token=frame.token).serialize()
        seen = self._subscribers.keep_alive(client, frame.flags, now, AMPLIFICATION * KEEPALIVE - len(ack))
        if not seen.admitted:
            # No ACK, because the client would believe that it is subscribed.
            why = self._places_taken("its own address holds as many as any other")
            raise RemoteProtocolError("too-many-subscribers", why)
        self._to_send.append((client, ack))
        events: list[Event] = [Replay(destination=client, first=first, last=last) for first, last in seen.deferred]
        if seen.displaced is not None:
            why = self._places_taken(f"its address holds the most: {source[0]} gets the place")
            events.append(Dropped(source=seen.displaced, cause="subscriber-displaced", detail=why))
        return events

    def _places_taken(self, why: str) -> str:
        return f"all {self._settings.subscribers} places are taken, and {why}; raise backbone.subscribers"

    def _request(self, frame: Request, source: Address, now: float) -> list[Event]:
        requester = self._own_address(frame.address, source)
        client = self._subscribers.find(requester, now)
        if client is None:
            raise RemoteProtocolError(
                "request-without-keepalive", f"no KEEPALIVE for port {requester[1]} has arrived for 5 s"
            )
        frame = Request(address=requester, first=frame.first, last=frame.last)
        if self._is_repeated(frame, now):
            raise RemoteProtocolError("request-repeated")
        if not self._requests.take(requester, 1, now):
            raise RemoteProtocolError("request-rate")
        oldest, newest = self._bounds()
        first = max(frame.first, oldest)
        last = min(frame.last, newest, first + MAX_SEQUENCES - 1)
        if first > last:
            raise RemoteProtocolError("request-of-nothing")
        if client.credit is not None:
            if not client.defer(first, last):
                raise RemoteProtocolError("request-before-keepalive", "its second KEEPALIVE has not arrived")
            return []
        peer = None
        if not client.repeats(first, last, now):
            peer = self._rotation.next([None, *self._subscribers.journals(now)], requester)
        if peer is None:
            return [Replay(destination=requester, first=first, last=last)]
        if not self._forwards.take("all", 1, now):
            raise RemoteProtocolError("forward-rate")
        self._to_send.append((peer, Forward(address=requester, first=first, last=last).serialize()))
        return []

    # Checks.

    def _own_address(self, claimed: Address, source: Address) -> Address:
        """Return the address that a client claims in ADDR and PORT, if it is valid.

        The protocol has no proof of an address, so ADDR must be the source address, or 0.0.0.0, which stands for it.

        :raises RemoteProtocolError: the client may not claim this address, or may not subscribe
        """
        host, port = claimed
        if not self._permits(source[0], Action.SUBSCRIBE):
            raise RemoteProtocolError("Forbidden", "the access policy does not permit it to subscribe")
        if host not in (source[0], "0.0.0.0"):
            raise RemoteProtocolError("foreign-address")
        client = (source[0], port)
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
