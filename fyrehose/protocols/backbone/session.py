"""The backbone's server without a socket: rules, limits and whose turn it is.

    PUSH        -> Pushed, within the rate of its address
    KEEPALIVE   -> a place in the table and an ACK, where ADDR is the source's own; the second brings what was owed
    REQUEST     -> a FORWARD to the client whose turn it is, or Replay when it is the server's own journal's, and
                   whenever the client repeats itself; nothing for a client whose KEEPALIVEs do not come
    all else    -> Dropped; errors are never answered

Specification: fyrehose-backbone.txt, rules 1 to 5 of the backbone.  Times are monotonic, in seconds, and arguments.

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

#: A REQUEST like one that came less than this ago is the same, in seconds.
MERGE = 0.1
#: How many REQUESTs are remembered for that.
MERGED = 4_096
#: A client that has not sent its second KEEPALIVE gets at most so many bytes for each byte that came from it.
AMPLIFICATION = 3
#: A destination's bytes come in pieces of its rate times this, in seconds: what receive buffers hold.
BURST = 1 / 16


@attrs.frozen(kw_only=True, slots=True)
class Pushed:
    """Messages to be published, as columns; ``large`` of them travel in fragments."""

    source: Address
    lengths: bytes
    payload: bytes
    large: int


@attrs.frozen(kw_only=True, slots=True)
class Replay:
    """It is the server's own journal's turn: DELIVER ``first`` to ``last`` to ``destination``."""

    destination: Address
    first: int
    last: int


@attrs.frozen(kw_only=True, slots=True)
class Dropped:
    """``count`` datagrams of ``source`` were not taken; ``cause`` names a counter and holds nothing from the peer."""

    source: Address
    cause: str
    detail: str = ""
    count: int = 1


Event = Pushed | Replay | Dropped


class ServerSession:
    """All state of a backbone server.

    :param bounds: the oldest and the last number of the stream that may leave
    :param permits: whether a host may publish into the stream, or subscribe to it
    :param is_own: whether a datagram to this address would come back to the server
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
        self._fresh = self._subscribers.fresh
        self._rotation = Rotation(random)
        self._pushes = Rates(settings.push_rate, settings.push_rate)
        self._requests = Rates(settings.request_rate, settings.request_rate)
        self._forwards = Rates(settings.forward_rate, settings.forward_rate, most=1)
        self._bytes = Rates(settings.destination_rate, settings.destination_rate * BURST)
        self._asked: OrderedDict[Request, float] = OrderedDict()
        self._permits = permits
        self._to_send: list[tuple[Address, bytes]] = []

    def receive_datagrams(self, data: Buffer, segment: int, source: Address, now: float) -> list[Event]:
        """Datagrams of ``segment`` bytes each (the last may be shorter) that came from ``source``."""
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
        """ACKs and FORWARDs: each destination and datagram, once."""
        to_send, self._to_send = self._to_send, []
        return to_send

    def listening(self, now: float) -> list[Address]:
        """Who gets the DELIVERs of what is durable now."""
        return self._subscribers.listening(now)

    def newcomers(self, now: float) -> list[tuple[Address, Client]]:
        """Subscribers that get as many of them as :meth:`ration` allows, until their second KEEPALIVE comes."""
        return self._subscribers.newcomers(now)

    def ration(self, newcomer: Client, trains: tuple[Train, ...], last: int) -> list[Train]:
        """Return as many of ``trains`` as the credit of ``newcomer`` covers, and keep the others for later.

        :param last: the number of the last record in ``trains``
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
        """Whether anything may go to ``destination`` now: the rate of its host says."""
        return self._bytes.ready(destination[0], now)

    def charge(self, destination: Address, size: int, now: float) -> None:
        """``size`` bytes go to ``destination``."""
        self._bytes.charge(destination[0], size, now)

    # The datagrams.

    def _push(
        self, events: list[Event], source: Address, lengths: bytes, payload: bytes, segment: int, now: float
    ) -> None:
        """Rule 5: from anybody, even if it never sent a KEEPALIVE.  No datagram is larger than ``segment``."""
        count = len(lengths) // 4
        if not self._permits(source[0], Action.PUBLISH):
            events.append(Dropped(source=source, cause="Forbidden", detail="it may not publish", count=count))
            return
        granted = self._pushes.take(source[0], count, now)
        if granted < count:
            events.append(Dropped(source=source, cause="push-rate", count=count - granted))
            if not granted:
                return
            lengths = lengths[: 4 * granted]
            payload = payload[: sum(memoryview(lengths).cast("I"))]
        if self._fresh and (newcomer := self._fresh.get(source)) is not None and newcomer.credit is not None:
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
        ack = KeepAliveAck(token=frame.token).encode()
        seen = self._subscribers.seen(client, frame.flags, now, AMPLIFICATION * KEEPALIVE - len(ack))
        if not seen.admitted:
            # No ACK either: it would feign a subscription.
            raise RemoteProtocolError("too-many-subscribers", self._full("its own address holds as many as any other"))
        self._to_send.append((client, ack))
        events: list[Event] = [Replay(destination=client, first=first, last=last) for first, last in seen.owed]
        if seen.displaced is not None:
            why = self._full(f"its address holds the most, and {source[0]} needs one")
            events.append(Dropped(source=seen.displaced, cause="subscriber-displaced", detail=why))
        return events

    def _full(self, why: str) -> str:
        return f"all {self._settings.subscribers} places are taken, and {why}; raise backbone.subscribers"

    def _request(self, frame: Request, source: Address, now: float) -> list[Event]:
        requester = self._own_address(frame.address, source)
        client = self._subscribers.find(requester, now)
        if client is None:
            raise RemoteProtocolError(
                "request-without-keepalive", f"no KEEPALIVE of port {requester[1]} came in the last 5 s"
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
            if not client.owe(first, last):
                raise RemoteProtocolError("request-before-keepalive", "its second KEEPALIVE has not come")
            return []
        peer = None
        if not client.repeats(first, last, now):
            peer = self._rotation.next([None, *self._subscribers.journals(now)], requester)
        if peer is None:
            return [Replay(destination=requester, first=first, last=last)]
        if not self._forwards.take("all", 1, now):
            raise RemoteProtocolError("forward-rate")
        self._to_send.append((peer, Forward(address=requester, first=first, last=last).encode()))
        return []

    # Who may say what.

    def _own_address(self, said: Address, source: Address) -> Address:
        """The address that the sender gave as its own, if it can be.

        The wire has no proof that a client is where it says, so ADDR is the source's or 0.0.0.0, which stands for it.
        """
        host, port = said
        if not self._permits(source[0], Action.SUBSCRIBE):
            raise RemoteProtocolError("Forbidden", "it may not subscribe")
        if host not in (source[0], "0.0.0.0"):
            raise RemoteProtocolError("foreign-address")
        client = (source[0], port)
        if not can_receive(client):
            raise RemoteProtocolError("impossible-address")
        if self._is_own(client):
            raise RemoteProtocolError("own-address")
        return client

    def _is_repeated(self, request: Request, now: float) -> bool:
        while self._asked:
            oldest, at = next(iter(self._asked.items()))
            if now - at < MERGE and len(self._asked) < MERGED:
                break
            del self._asked[oldest]
        if request in self._asked:
            return True
        self._asked[request] = now
        return False
