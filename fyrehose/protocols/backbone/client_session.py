"""The client's side of the backbone, without I/O: subscribe, publish, or answer requests of other clients.

    every second     KEEPALIVE -> KEEPALIVE-ACK with the same token; without one for some time, the backbone is lost
    move             the owner has bound another port, or found another address of a lost backbone: continue there
    DELIVER          -> Run, in order; a gap -> REQUESTs -> Run or RecordsSkipped
    push             -> PUSH -> its DELIVER -> PushConfirmed; PushTimedOut if no DELIVER arrives
    FORWARD          -> DELIVERs of stored records, to the client for which the backbone requests them

Specification: fyrehose-backbone.txt, RULES (CLIENT) 1 to 6.  Times are monotonic, in seconds, and passed as arguments.

in: receive_datagrams(train, source, now), tick(now)      out: events; data_to_send() -> (train, destination) each
"""

from __future__ import annotations

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
    Frame,
    KeepAlive,
    KeepAliveAck,
    Request,
    can_receive,
)
from fyrehose.protocols.backbone.gso_batches import serialize_delivers, serialize_pushes, single
from fyrehose.protocols.backbone.pushes import Pushes
from fyrehose.protocols.backbone.rates import Rates
from fyrehose.protocols.backbone.repair import RecentRuns, RecordsSkipped, Repair
from fyrehose.protocols.backbone.session import BackboneSession, Dropped
from fyrehose.records import Run

#: Interval of KEEPALIVEs, in seconds (rule 1 of the client).
KEEPALIVE = 1.0
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


#: A Run has records in order, each once.  Its ``stream`` and ``source`` are always "backbone" and its ``time`` is 0,
#: because a DELIVER has none of these.
Event = Run | RecordsSkipped | PushConfirmed | PushTimedOut | Found | BackboneLost | Dropped


class BackboneClientSession(
    BackboneSession[Run | RecordsSkipped | PushConfirmed | PushTimedOut | Found | BackboneLost]
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

    # For the owner.

    def tick(self, now: float) -> list[Event]:
        """Run all actions that are due at *now*: KEEPALIVEs, REQUESTs, repeated pushes."""
        events: list[Event] = []
        if now >= self._next_keepalive:
            self._keep_alive(now)
        if not self._lost and now - self._last_ack >= self._silence:
            self.found, self._lost = False, True
            events.append(BackboneLost())
        events.extend(PushTimedOut(handle=push.handle) for push in self.pushes.expired(now))
        if self.found:
            self._repair_now(events, now)
            self._push_now(now)
        return events

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
        pushes = self.pushes.next_due(now, self.found and self._hold <= now)
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

    def abandon(self) -> list[Event]:
        """Forget all unconfirmed pushes, and return a PushTimedOut for each of them."""
        return [PushTimedOut(handle=push.handle) for push in self.pushes.abandon()]

    # Received datagrams.

    def _messages(
        self, events: list[Event], view: memoryview, at: int, segment: int, source: Address, now: float
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
            self._deliver(events, run, now)
        return end

    def _deliver(self, events: list[Event], run: Run, now: float) -> None:
        new, ready = self.repair.received(run, now)
        for part in new:
            self._store.add(part)
            events.extend(PushConfirmed(handle=push.handle, seq=seq) for push, seq in self.pushes.delivered(part))
        events.extend(ready)
        if new:
            if self._hold > now:
                self._hold = min(now + HOLD, self._hold_limit)
            self._push_now(now)

    def _control(self, events: list[Event], frame: Frame, source: Address, now: float) -> None:
        if source != self._server:
            raise RemoteProtocolError("not-the-backbone")
        if isinstance(frame, KeepAliveAck):
            self._acknowledged(events, frame, now)
        elif isinstance(frame, Forward):
            self._forward(frame)
        else:
            raise RemoteProtocolError("not-for-clients", type(frame).__name__)

    def _acknowledged(self, events: list[Event], ack: KeepAliveAck, now: float) -> None:
        claimed = self._tokens.pop(ack.token, None)
        if claimed is None:
            raise RemoteProtocolError("unknown-token")
        self._last_ack = now
        if not self.found:
            self._claimed = claimed
            self._next_keepalive += KEEPALIVE - SEARCH
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
        self._tokens[token] = self._claimed
        if len(self._tokens) > TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._next_keepalive = now + (KEEPALIVE if self.found else SEARCH)
        frame = KeepAlive(address=self._claimed, flags=self._flags, token=token)
        self._to_send.append((single(frame.serialize()), self._server))

    def _repair_now(self, events: list[Event], now: float) -> None:
        if not self._options.subscribe:
            return
        events.extend(self.repair.give_up(now))
        most = self._requests.take("", REQUESTS, now)
        ranges = self.repair.due(now, most)
        self._requests.charge("", len(ranges) - most, now)
        for first, last in ranges:
            frame = Request(address=self._claimed, first=first, last=last)
            self._to_send.append((single(frame.serialize()), self._server))

    def _push_now(self, now: float) -> None:
        if not self.found or self._hold > now:
            return
        payloads = self.pushes.take(self.repair.highest, now)
        if payloads:
            self._to_send.extend((train, self._server) for train in serialize_pushes(payloads))
