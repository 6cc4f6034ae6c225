"""Client of shared subscriptions: lease records one after another, extend the leases meanwhile, settle them.

    async with WorkClient(reactor, endpoint, "127.0.0.1:8117").share("orders", "billing") as work:
        async for record in work:
            ...                             extended meanwhile; at the end of the body it is settled

If the body raises an error, its record is returned as failed; if the body is cancelled, as not tried.  A lease is lost
when the server says so, or its time is over, because ``longest`` has passed or no extension was answered.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError, LeaseLost
from fyrehose.ndjson import record_of
from fyrehose.net.clients import ConnectionOptions, ProcessException, process_exception
from fyrehose.protocols.http.calling import Called, Caller
from fyrehose.protocols.http.requests import HTTP_OPTIONS
from fyrehose.records import MAX_NAME, Record

log = Logger()
T = TypeVar("T")

#: How long a request for records waits, in seconds.
WAIT = 20.0
#: How much of a lease's time a client counts on, because clocks drift.
TRUSTED = 0.99
#: Refusals after which the lease is still the worker's.
KEPT = ("later", "not-leading")
#: How many lease times a record is extended by default, at most, so that a body that hangs does not keep the record for
#: ever.
LONGEST = 10

_numbers = count(1)


@attrs.define(eq=False)
class WorkRecord:
    """A leased record.

    :ivar record: the record
    :ivar failures: how many of its leases have failed before
    :ivar lost: whether the lease was lost meanwhile, so that another worker may have the record; settling the record
        nevertheless counts while no other worker has had it
    :ivar ended: whether the record was settled or returned
    :ivar leased: when the lease began, by the clock of the client
    """

    record: Record
    token: str
    failures: int
    leased: float
    lost: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    #: what :meth:`SharedWork.hold` waits for, and the end of the lease
    _held: Deferred[Any] | None = attrs.field(default=None, init=False)
    _timer: IDelayedCall | None = attrs.field(default=None, init=False)

    def wait_for(self, held: Deferred[Any] | None) -> None:
        """Cancel *held* when the lease is lost."""
        self._held = held
        if held is not None and self.lost:
            held.cancel()

    def keep(self, clock: IReactorTime, until: float) -> None:
        """Lose the lease at the time *until*, instead of the time before."""
        self.stop()
        if not (self.lost or self.ended):
            self._timer = clock.callLater(max(0.0, until - clock.seconds()), self.lose)

    def lose(self) -> None:
        """Record that the lease is lost, and cancel what the worker waits for."""
        self.stop()
        self.lost = True
        if self._held is not None:
            self._held.cancel()

    def end(self) -> None:
        """Record that the record is settled or returned now."""
        self.ended = True
        self.stop()

    def stop(self) -> None:
        """Forget the end of the lease."""
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def stream(self) -> str:
        return self.record.stream

    @property
    def payload(self) -> bytes:
        return self.record.payload


@attrs.frozen
class WorkClient:
    """A client of the server at *endpoint*.

    :ivar authority: the value of the ``Host`` header, such as ``127.0.0.1:8117``
    :ivar token: the bearer token that is sent, if any
    :ivar connection_options: the times of its connections
    :ivar process_exception: decides which errors end a worker: see :func:`fyrehose.net.clients.process_exception`
    """

    clock: IReactorTime
    endpoint: IStreamClientEndpoint
    authority: str
    token: str | None = attrs.field(default=None, repr=False)
    connection_options: ConnectionOptions = attrs.field(default=HTTP_OPTIONS, kw_only=True)
    process_exception: ProcessException = attrs.field(default=process_exception, kw_only=True)

    def share(
        self,
        stream: str,
        subscription: str,
        *,
        consumer: str | None = None,
        most: int = 1,
        longest: int = LONGEST,
        idle: float | None = None,
        options: Mapping[str, object] | None = None,
    ) -> SharedWork:
        """Return the records of a shared subscription for one worker, to be used with ``async with``.

        :param stream: the stream, or a pattern such as ``logs.*``
        :param consumer: the name of the worker, which lists show; the limit of records that one worker may hold counts
            by this name
        :param most: how many records are leased at once
        :param longest: how many lease times a record is extended at most
        :param idle: how long to wait for a record before the iteration ends, in seconds; None: for ever
        :param options: the options of the subscription, such as ``{"lease": 60, "dead": "orders.dead"}``: a new
            subscription gets these options, and an existing one must have them; None: any existing options, or the
            defaults
        """
        consumer = consumer or f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        polling, acting = (
            Caller(
                self.clock,
                self.endpoint,
                self.authority,
                self.token,
                self.connection_options,
                lambda error: self.process_exception(error) is None,
            )
            for _ in range(2)
        )
        return SharedWork(self.clock, polling, acting, stream, subscription, consumer, most, longest, idle, options)


@attrs.define(eq=False)
class SharedWork:
    """The records that one worker leases, one after another.

    :ivar lease: how long a lease lasts, in seconds
    """

    clock: IReactorTime
    polling: Caller
    acting: Caller
    stream: str
    subscription: str
    consumer: str
    most: int
    longest: int
    idle: float | None
    options: Mapping[str, object] | None
    lease: float = attrs.field(default=30.0, init=False)
    _waiting: deque[WorkRecord] = attrs.field(factory=deque, init=False)
    _current: WorkRecord | None = attrs.field(default=None, init=False)
    #: the number of the last request; begins at random, so that an earlier worker of this name had other numbers
    _request: int = attrs.field(factory=lambda: secrets.randbits(40), init=False)
    _extending: LoopingCall = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._extending = LoopingCall(self._extend)
        self._extending.clock = self.clock

    @property
    def path(self) -> str:
        return f"/subscriptions/{quote(self.subscription, safe='')}"

    async def __aenter__(self) -> SharedWork:
        """Create the subscription if there is none.

        :raises FyrehoseError: the server refuses
        """
        status, shown = (404, {}) if self.options is not None else (await self.polling.call("GET", self.path))[:2]
        if status == 404:
            place = "match" if "*" in self.stream else "stream"
            body = {place: self.stream, "shared": True, **(self.options or {})}
            status, shown, *_ = await self.polling.call("PUT", self.path, body)
        self._check(status, shown)
        if shown.get("kind") != "shared" or shown.get("stream") != self.stream:
            raise FyrehoseError(
                f"subscription {self.subscription!r} is not a shared one of {self.stream!r}: it is one of kind "
                f"{shown.get('kind')!r} of {shown.get('stream')!r}"
            )
        self.lease = float(shown["lease"])
        self._extending.start(self.lease / 3, now=False).addErrback(
            lambda failure: log.failure("extending leases failed; they will expire", failure)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the present record, or return it if the body raised an error; return all records not begun."""
        if self._extending.running:
            self._extending.stop()
        current, self._current = self._current, None
        try:
            if error is not None:
                # A request for records may be under way; other workers get its records when the leases end.
                self.polling.close()
            if current is not None and not current.ended:
                current.stop()
                if error is None:
                    await self.settle(current)
                elif not current.lost:
                    how = "untried" if isinstance(error, CancelledError | GeneratorExit) else "failed"
                    await self._act({how: [self._item(current)]})
            for each in self._waiting:
                each.stop()
            untried = [[*self._item(each), {"delay": 0}] for each in self._waiting if not each.lost]
            self._waiting.clear()
            if untried:
                await self._act({"untried": untried})
        finally:
            self.polling.close()
            self.acting.close()

    def __aiter__(self) -> SharedWork:
        return self

    async def __anext__(self) -> WorkRecord:
        """Settle the previous record, and return the next one as soon as there is one.

        :raises FyrehoseError: the server refuses, for example because the subscription was deleted
        """
        current, self._current = self._current, None
        if current is not None and not current.ended:
            try:
                await self.settle(current)
            except LeaseLost as lost:
                log.warn("{lost}; another worker does it again", lost=str(lost))
        began = self.clock.seconds()
        while True:
            while not self._waiting:
                await self._fetch()
                idle = self.clock.seconds() - began
                if self.idle is not None and idle >= self.idle and not self._waiting:
                    raise StopAsyncIteration
            current = self._waiting.popleft()
            if not current.lost:
                self._current = current
                return current

    async def hold(self, record: WorkRecord, awaited: Awaitable[T]) -> T:
        """Wait for *awaited*, a Deferred or a coroutine, and cancel it when the lease of *record* is lost.

        :return: the result of *awaited*
        :raises LeaseLost: the lease is lost; the record is not settled any more
        """
        held: Deferred[T] = Deferred.fromCoroutine(_awaiting(awaited))
        record.wait_for(held)
        try:
            return await held
        except CancelledError:
            if not record.lost:
                raise
            record.end()
            where = f"record {record.seq} of stream {record.stream!r}"
            raise LeaseLost(f"the lease of {where} is lost: it was not extended, or the server refused that") from None
        finally:
            record.wait_for(None)

    async def settle(self, record: WorkRecord, publish: Sequence[Mapping[str, object]] = ()) -> None:
        """Settle *record*, and publish messages in the same commit: the results of the work.

        :param publish: the messages, such as ``{"stream": "invoices", "payload": "..."}``; ``payload_base64`` for bytes
        :raises LeaseLost: the lease was lost, and nothing was published
        :raises FyrehoseError: the server refuses
        """
        record.end()
        called = await self._act({"done": [self._item(record)], "publish": list(publish)})
        refused = [each["why"] for each in called.content.get("refused", [])]
        if refused and not (refused == ["final"] and called.repeats):
            raise LeaseLost(f"record {record.seq} of stream {record.stream!r} was not settled: {refused[0]}")

    async def failed(self, record: WorkRecord, delay: float | None = None) -> None:
        """Give *record* back as failed; the server leases it again after *delay* seconds, or after a growing time."""
        await self._give_back("failed", record, {} if delay is None else {"delay": delay})

    async def untried(self, record: WorkRecord, delay: float | None = None) -> None:
        """Give *record* back without counting a failure, for example because a database is down."""
        await self._give_back("untried", record, {} if delay is None else {"delay": delay})

    async def reject(self, record: WorkRecord, why: str) -> None:
        """Make *record* a dead letter at once; of the reason *why*, as much is stored as a name may have bytes."""
        text = why.encode(errors="replace")[:MAX_NAME].decode(errors="ignore")
        await self._give_back("reject", record, {"why": text})

    # Internals.

    async def _give_back(self, how: str, record: WorkRecord, options: Mapping[str, object]) -> None:
        record.end()
        await self._act({how: [[*self._item(record), options]]})

    def _item(self, record: WorkRecord) -> list[object]:
        place = [record.stream] if "*" in self.stream else []
        return [*place, record.seq, record.token]

    async def _act(self, body: Mapping[str, object]) -> Called:
        """Send a request that settles records; it may be repeated, because a settled record stays settled."""
        called = await self.acting.call("POST", f"{self.path}/settle", {**body, "consumer": self.consumer})
        status, answer, *_ = called
        if status != 409 or "refused" not in answer:
            self._check(status, answer)
        return called

    async def _fetch(self) -> None:
        """Lease the next records; repeat a request without an answer under the same number, for the same records."""
        self._request += 1
        wait = WAIT if self.idle is None else min(WAIT, self.idle)
        body = {"consumer": self.consumer, "request": self._request, "most": self.most, "wait": wait}
        status, answer, asked_at, _ = await self.polling.call("POST", f"{self.path}/lease", body, wait)
        self._check(status, answer)
        leased = asked_at + answer["waited"]
        for each in answer["records"]:
            record = WorkRecord(record_of(each), each["token"], each["failures"], leased)
            record.keep(self.clock, leased + TRUSTED * self.lease)
            self._waiting.append(record)

    def _extend(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._extend_all())

    async def _extend_all(self) -> None:
        """Extend the leases of the record that is worked on, and of those that wait behind it."""
        until = self.clock.seconds() - self.longest * self.lease
        held = [each for each in (self._current, *self._waiting) if each is not None and not (each.ended or each.lost)]
        held = [each for each in held if each.leased > until]
        if not held:
            return
        called = await self._act({"extend": [self._item(each) for each in held]})
        until = called.asked_at + TRUSTED * self.lease
        tokens, refused = ({_place(each): each for each in called.content[kind]} for kind in ("extended", "refused"))
        for each in held:
            place = (each.stream if "*" in self.stream else None, each.seq)
            if place in tokens:
                each.token = tokens[place]["token"]
                each.keep(self.clock, until)
            elif not each.ended and refused[place]["why"] not in KEPT:
                each.lose()

    def _check(self, status: int, answer: Mapping[str, Any]) -> None:
        if status not in (200, 204):
            raise FyrehoseError(f"subscription {self.subscription!r}: {answer.get('error', f'status {status}')}")


async def _awaiting(awaited: Awaitable[T]) -> T:
    return await awaited


def _place(each: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return what an answer names a record by: its stream, if the subscription is one of a pattern, and its number."""
    return each.get("stream"), each["seq"]
