"""The shared log on NATS JetStream: a stream of one subject, with conditional appends.

nats-py needs asyncio, so it runs in a thread with a loop of its own; results come back to the reactor's thread.

    subject fyrehose.NAME.log        the entries; the stream FYREHOSE_NAME stores them
    subject fyrehose.NAME.say        messages between servers, which NATS does not store
    subject fyrehose.NAME.members    requests of operators to change the members
    subject fyrehose.NAME.here.SERVER.INCARNATION    no messages: a subscription shows that the server is connected

One request reads many entries (a "batched direct get", nats-server 2.11); an older NATS server answers with one entry.

Install the extra ``replication`` to use it.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from math import inf
from threading import Thread
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.cluster.entries import MAX_ENTRY, EntryWriter, LogEntry
from fyrehose.cluster.shared_log import EntryRange, ISharedLog, Refused, Unavailable
from fyrehose.cluster.stream import (
    create,
    lacks_leader,
    limit_of,
    nodes_of,
    stream_of,
    subject_of,
    unheard,
)
from fyrehose.errors import ConfigError
from fyrehose.journal.format import Damage

log = Logger()
T = TypeVar("T")

#: JetStream's error code for an append whose condition does not hold.
WRONG_LAST = 10071
#: JetStream's error code for a stream without a leader, as far as this NATS server knows; another may know a leader.
NO_LEADER = 10008
#: JetStream's error code for a repeated append while the first one waits for a majority, which may never come.
IN_PROCESS = 10158
#: How often the connection is tried again, in seconds.
RETRY = 0.25
#: After this many seconds without an answer, the NATS server counts as frozen or cut off, and the next one is used.
SILENT = 3.0
#: A NATS server that leads the stream hears each other one that stores it once a second.  Without a majority for this
#: many seconds it is cut off, and accepts nothing, but it leads on for ten seconds or more while the others hear it.
CUT_OFF = 2.0
#: How long the previous connection may take to close after a change to another NATS server, in seconds.
CLOSE = 5.0
#: How long sending the last messages may take, and then closing the connection, in seconds each.
LAST_WORDS = 0.75
#: How long to wait for NATS to report that a subject has no subscriber, which it normally does at once, in seconds.
NOBODY = 0.5
#: How many bytes of entries one request reads; the connection's buffers hold several times as much.
READ_BYTES = 4 << 20
#: Limit of the bytes of one read of the connection.
RECEIVE_BYTES = 512 << 10


@implementer(ISharedLog)
@attrs.define(eq=False)
class JetStreamLog:
    """A shared log on JetStream; see :class:`ISharedLog` for the methods.

    :ivar servers: URLs, for example ``nats://10.0.0.1:4222``
    :ivar name: the name of the cluster, which is part of the subjects' names
    :ivar replicas: on how many NATS servers each entry must be stored
    :ivar limit: if this server creates the stream: the size of the stream at which the leader refuses messages, in
        bytes
    :ivar timeout: how long to wait for an answer, in seconds
    :ivar options: further arguments of ``nats.connect``: credentials, TLS
    """

    reactor: Any
    servers: Sequence[str]
    name: str
    replicas: int = 3
    limit: int = 8 << 30
    timeout: float = 2.0
    options: dict[str, Any] = attrs.field(factory=dict)
    _loop: asyncio.AbstractEventLoop | None = attrs.field(default=None, init=False)
    _thread: Thread | None = attrs.field(default=None, init=False)
    _client: Any = attrs.field(default=None, init=False)
    _stream: Any = attrs.field(default=None, init=False)
    #: Prefix of the subjects to which NATS sends requested entries, and the queue of each request, by subject.
    _inbox: str = attrs.field(default="", init=False)
    _requests: dict[str, asyncio.Queue[Any]] = attrs.field(factory=dict, init=False)
    _asked: int = attrs.field(default=0, init=False)  #: how many requests for entries were sent
    #: The last error of the connection, so that the same error is not logged again and again.
    _error: str = attrs.field(default="", init=False)
    #: When NATS last answered a request, or a connection was made, by the loop's clock.
    _answered: float = attrs.field(default=0.0, init=False)
    #: The requests that wait for an answer.
    _waiting: set[asyncio.Task[Any]] = attrs.field(factory=set, init=False)
    #: The change to another NATS server that is under way, if any.
    _leaving: asyncio.Task[None] | None = attrs.field(default=None, init=False)
    #: The end of the connection that was left last.
    _left: asyncio.Task[None] | None = attrs.field(default=None, init=False)
    _heard: Callable[[bytes], None] = attrs.field(default=lambda message: None, init=False)
    _members_asked: Callable[[bytes], None] = attrs.field(default=lambda message: None, init=False)
    _writer: EntryWriter | None = attrs.field(default=None, init=False)

    @property
    def stream(self) -> str:
        """Return the name of the stream in JetStream."""
        return stream_of(self.name)

    @property
    def _connection(self) -> Any:
        if self._client is None:
            raise ConnectionError("no NATS server is connected")
        return self._client

    @property
    def subject(self) -> str:
        """Return the subject of the entries."""
        return subject_of(self.name)

    @property
    def connected_to(self) -> str:
        """Return host and port of the NATS server in use; "" without a connection."""
        url = None if self._client is None else self._client.connected_url
        return url.netloc.rpartition("@")[2] if url else ""

    def open(
        self,
        heard: Callable[[bytes], None],
        writer: EntryWriter | None = None,
        asked: Callable[[bytes], None] = lambda message: None,
    ) -> Deferred[list[str]]:
        """Connect, and start the thread of the NATS client if it does not run yet; see :class:`ISharedLog`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="fyrehose replication", daemon=True)
            self._thread.start()
        self._heard, self._writer, self._members_asked = heard, writer, asked
        return self._ask(self._open())

    async def _open(self) -> list[str]:
        if self._leaving is not None:
            await self._leaving
        if self._client is None:
            await self._connect(random.sample(self.servers, len(self.servers)))
        return await self._open_stream()

    async def _connect(self, servers: list[str]) -> None:
        """Connect to the first of *servers* that accepts a connection."""
        import nats.aio.client

        # Entries are large, and each read of the connection costs as much as the copy of ten times the default.
        nats.aio.client.DEFAULT_BUFFER_SIZE = max(nats.aio.client.DEFAULT_BUFFER_SIZE, RECEIVE_BYTES)

        client: Any = nats.aio.client.Client()

        async def disconnected() -> None:
            if client is self._client:  # the end of a connection that was left ends no request on the next one
                await self._end_requests()

        try:
            await client.connect(
                servers,
                error_cb=self._failed,
                disconnected_cb=disconnected,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RETRY,
                connect_timeout=self.timeout,
                dont_randomize=True,
                name=f"fyrehose {self.name}",
                **self.options,
            )
            inbox = await self._subscribe(client)
        except BaseException:
            await _end(client)
            raise
        self._inbox, self._client, self._stream = inbox, client, client.jetstream(timeout=self.timeout)
        self._answered = asyncio.get_running_loop().time()

    async def _subscribe(self, client: Any) -> str:
        """Subscribe to everything that other servers and NATS send; return the prefix of the subjects of answers."""

        async def receive(message: Any) -> None:
            self.reactor.callFromThread(self._heard, bytes(message.data))

        async def receive_request(message: Any) -> None:
            self.reactor.callFromThread(self._members_asked, bytes(message.data))

        await client.subscribe(subject_of(self.name, "say"), cb=receive)
        await client.subscribe(subject_of(self.name, "members"), cb=receive_request)
        await client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{self.stream}", cb=self._end_requests)
        if self._writer is not None:
            await client.subscribe(self._here(self._writer), cb=_ignore)
        inbox: str = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._replied)
        return inbox

    async def _end_requests(self, elected: Any = None) -> None:
        """End the requests that wait, so that they are sent again.

        The next connection brings no answers to them; nor does a new leader of the stream, in the message *elected*.
        """
        for asked in self._waiting:
            asked.cancel()

    def _unanswered(self) -> None:
        """Leave a NATS server that does not answer, which the NATS client notices only after minutes, or never.

        The NATS client closes for good when a NATS server refuses it.  But a NATS server that has just started may not
        know all passwords yet, so this method connects again, even if there is only one NATS server.
        """
        silent = asyncio.get_running_loop().time() - self._answered
        if self._client is None or self._leaving is not None or silent <= SILENT:
            return
        if len(self.servers) > 1 or self._client.is_closed:
            self._leaving = asyncio.ensure_future(self._leave())

    async def _leave(self) -> None:
        left, old, self._client = self.connected_to, self._client, None
        at = next((at for at, url in enumerate(self.servers) if url.endswith(left)), 0)
        following = [*self.servers[at + 1 :], *self.servers[: at + 1]]
        await self._failed(ConnectionError(f"no answer from {left or 'NATS'}; connecting to another server"))
        try:
            await self._connect(following)
        except Exception as error:
            await self._failed(error)
            self._client, self._answered = old, asyncio.get_running_loop().time()
            return
        except asyncio.CancelledError:
            self._client = old  # which close() ends
            raise
        finally:
            self._leaving = None
        self._left = asyncio.ensure_future(_end(old))

    async def _open_stream(self) -> list[str]:
        from nats.js.errors import NotFoundError

        try:
            info = await self._stream.stream_info(self.stream)
        except NotFoundError:
            info = await create(self._stream, self.name, self.replicas, self.limit)
        return judge(info.config, self.stream, self.subject, self.replicas)

    async def _failed(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if said != self._error:
            self._error = said
            self.reactor.callFromThread(log.warn, "the connection to NATS: {error}", error=said)

    def append(self, entry: LogEntry, expect: int) -> Deferred[int]:
        return self._ask(self._append(entry, expect))

    async def _append(self, entry: LogEntry, expect: int) -> int:
        from nats.js.errors import APIError

        # The id includes the expected number, so that NATS does not take an entry that is sent for a new number for a
        # repetition.
        headers = {"Nats-Msg-Id": f"{entry.ident}/{expect}", "Nats-Expected-Last-Sequence": str(expect)}
        try:
            answer = await self._stream.publish(
                self.subject, entry.pack(), timeout=self.timeout, stream=self.stream, headers=headers
            )
        except APIError as error:
            last = re.search(r"wrong last sequence: (\d+)", error.description or "")
            if error.err_code == WRONG_LAST and last:
                raise Refused(int(last[1])) from error
            raise
        return int(answer.seq)

    def extent(self) -> Deferred[EntryRange]:
        return self._ask(self._extent())

    async def _extent(self) -> EntryRange:
        info = await self._stream.stream_info(self.stream)
        state, nodes = info.state, nodes_of(info)
        if lacks_leader(nodes):
            # A NATS server that is cut off from the majority would answer for ever with outdated numbers.
            raise Unavailable(f"the stream {self.stream} has no leader at present")
        if (silent := unheard(info)) > CUT_OFF:
            # Its successor is one that it has heard in the last three seconds.  As it is cut off, this answer has come
            # without another NATS server in between, so this one is left.
            await self._connection.publish(f"$JS.API.STREAM.LEADER.STEPDOWN.{self.stream}", b"")
            self._answered = -inf
            raise Unavailable(f"the stream's leader, {info.cluster.leader}, has heard no majority for {silent:.1f} s")
        return EntryRange(
            int(state.first_seq) or 1,
            int(state.last_seq),
            int(state.bytes),
            limit_of(info.config),
            nodes,
            info.config.num_replicas or 1,
        )

    def read(self, number: int, most: int) -> Deferred[list[tuple[int, LogEntry]]]:
        return self._ask(self._read(number, most))

    async def _read(self, number: int, most: int) -> list[tuple[int, LogEntry]]:
        self._asked += 1
        reply = f"{self._inbox}.{self._asked}"
        replies = self._requests[reply] = asyncio.Queue()
        wanted = json.dumps({"seq": number, "batch": most, "max_bytes": READ_BYTES}).encode()
        found: list[tuple[int, LogEntry]] = []
        try:
            await self._connection.publish(f"$JS.API.DIRECT.GET.{self.stream}", wanted, reply=reply)
            while len(found) < most:
                message = await asyncio.wait_for(replies.get(), self.timeout)
                if not _is_entry(message, number + len(found)):
                    break
                found.append((number + len(found), LogEntry.unpack(message.data)))
                # An older NATS server sends one entry, and no end of the batch.
                if "Nats-Num-Pending" not in message.headers:
                    break
        except TimeoutError:
            if not found:
                raise
        finally:
            del self._requests[reply]
        return found

    async def _replied(self, message: Any) -> None:
        replies = self._requests.get(message.subject)
        if replies is not None:
            replies.put_nowait(message)

    def purge(self, number: int) -> Deferred[None]:
        return self._ask(self._purge(number))

    async def _purge(self, number: int) -> None:
        await self._stream.purge_stream(self.stream, seq=number)

    def say(self, message: bytes) -> None:
        if self._client is not None and self._client.is_connected:
            said = self._client.publish(subject_of(self.name, "say"), message)
            self._ask(said, answers=False).addErrback(lambda _: None)

    def is_here(self, writer: EntryWriter) -> Deferred[bool]:
        return self._ask(self._is_here(writer), answers=False)

    async def _is_here(self, writer: EntryWriter) -> bool:
        from nats.errors import NoRespondersError

        with suppress(TimeoutError):
            try:
                await self._connection.request(self._here(writer), timeout=NOBODY)
            except NoRespondersError:
                return False
        return True

    def _here(self, writer: EntryWriter) -> str:
        return f"fyrehose.{self.name}.here.{writer.name}.{writer.incarnation}"

    def close(self) -> Deferred[None]:
        closed = self._ask(self._close(), answers=False)
        return closed.addBoth(self._stop)

    async def _close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        if ending := list(filter(None, (self._leaving, self._left))):
            await asyncio.wait(ending, timeout=LAST_WORDS)
        if self._client is not None:
            with suppress(Exception):  # the last messages are optional, and a frozen server does not take them
                await self._client.flush(timeout=LAST_WORDS)
            with suppress(Exception):
                await asyncio.wait_for(self._client.close(), LAST_WORDS)

    def _stop(self, _: object) -> None:
        loop, thread, self._loop, self._client = self._loop, self._thread, None, None
        self._leaving = self._left = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _ask(self, asked: Coroutine[Any, Any, T], answers: bool = True) -> Deferred[T]:
        """Await *asked* in the thread of the NATS client; fail with Unavailable if NATS does not answer.

        :param answers: whether the result of *asked* is an answer of the NATS server, so that it shows that the server
            is alive
        """
        done: Deferred[T] = Deferred()

        def answered() -> None:
            if answers:
                self._answered, self._error = asyncio.get_running_loop().time(), ""

        async def run() -> None:
            """Await the answer in the thread of the NATS client, and pass its outcome to the reactor's thread."""
            this = asyncio.current_task()
            assert this is not None, "a loop runs it"
            if answers:
                self._waiting.add(this)
            try:
                result = await asked
            except asyncio.CancelledError:
                why = "the connection to NATS has ended, or another NATS server leads the stream"
                self.reactor.callFromThread(done.errback, Failure(Unavailable(why)))
            except (Refused, Damage, ConfigError):
                answered()
                self.reactor.callFromThread(done.errback, Failure())
            except Exception as error:
                if refused := refusal(error):
                    answered()
                else:
                    self._unanswered()
                why = refused or f"NATS does not answer: {str(error) or type(error).__name__}"
                self.reactor.callFromThread(done.errback, Failure(Unavailable(why)))
            else:
                answered()
                self.reactor.callFromThread(done.callback, result)
            finally:
                self._waiting.discard(this)

        if self._loop is None:
            asked.close()
            done.errback(Failure(Unavailable("the connection to NATS is closed")))
        else:
            asyncio.run_coroutine_threadsafe(run(), self._loop)
        return done


async def _end(client: Any) -> None:
    """Close a connection that is not needed any more; a frozen NATS server may prevent that."""
    with suppress(Exception):
        await asyncio.wait_for(client.close(), CLOSE)


async def _ignore(message: Any) -> None:
    """Ignore *message*, because other servers send it only to find out whether this server is subscribed."""


def refusal(error: Exception) -> str:
    """Return the text of *error* if NATS has answered with it; otherwise an empty string.

    An answer that a NATS server gives without the stream's other servers is none: it may be cut off from them.
    """
    from nats.js.errors import APIError

    if not isinstance(error, APIError) or error.err_code in (None, NO_LEADER, IN_PROCESS):
        return ""
    return f"NATS refuses: {error.description or type(error).__name__} (code {error.err_code})"


def _is_entry(message: Any, number: int) -> bool:
    """Return whether *message* is the entry *number*; if not, the shared log does not have that entry yet or any more.

    :raises Unavailable: NATS reports that no server can answer
    """
    headers = message.headers or {}
    status = headers.get("Status")
    if status not in (None, "204", "404"):
        raise Unavailable(f"NATS cannot read the shared log: status {status} {headers.get('Description', '')}".rstrip())
    return status is None and headers.get("Nats-Sequence") == str(number)


def judge(config: Any, stream: str, subject: str, replicas: int) -> list[str]:
    """Check whether the settings of an existing stream in JetStream are safe for the shared log.

    :return: warnings, one sentence each
    :raises ConfigError: the stream would lose entries, or does not accept them
    """
    deletes = [
        f"{name} is {value}"
        for name, value in (
            ("max_age", config.max_age),
            ("max_msgs", config.max_msgs),
            ("max_bytes", None if str(config.discard) == "new" else config.max_bytes),
            ("max_msgs_per_subject", config.max_msgs_per_subject),
        )
        if value not in (None, 0, -1)
    ]
    wrong = [
        (str(config.storage) != "file", f"it is stored in {config.storage}; it must be stored in files"),
        (str(config.retention) != "limits", f"its retention is {config.retention}; it must be limits"),
        (bool(deletes), f"it deletes messages by itself ({', '.join(deletes)}); remove these limits"),
        (subject not in (config.subjects or []), f"it does not have the subject {subject}"),
        (bool(config.no_ack), "it does not acknowledge messages (no_ack)"),
        (not config.allow_direct, "it does not allow direct reads; set allow_direct"),
        (
            0 < (config.max_msg_size or 0) < MAX_ENTRY,
            f"its max_msg_size is {config.max_msg_size}; entries have up to {MAX_ENTRY} bytes",
        ),
    ]
    for is_wrong, reason in wrong:
        if is_wrong:
            raise ConfigError(f"the stream {stream} in JetStream cannot be used: {reason}")
    if (config.num_replicas or 1) < replicas:
        warning = (
            f"the stream {stream} has {config.num_replicas or 1} replicas, and {replicas} are configured: what is "
            "acknowledged may be lost with fewer machines than you expect; run `nats stream edit` to change it"
        )
        return [warning]
    return []
