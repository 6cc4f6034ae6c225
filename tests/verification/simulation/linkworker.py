"""A worker of a shared subscription over Relink: the server sends jobs, and consuming a job's message settles the job.

a record on channel 0 is consumed                      -> the job is settled without a result
a record is answered by a message and then consumed    -> settled with a result, failed, untried, rejected or extended
a notice on channel 1 names the jobs that were refused
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from book import NAME, Place
from links import Endpoint
from webclient import place_of
from worker import BAD_KINDS, KINDS, Held, choose, items, results

from fyrehose.net.clients import ConnectionOptions, Reconnector
from fyrehose.protocols.relink import events
from fyrehose.protocols.relink.client import ConnectorConnection
from fyrehose.protocols.relink.frames import Hello, Terms
from fyrehose.protocols.relink.link import Link, LinkLimits
from fyrehose.protocols.relink.names import share_name
from fyrehose.protocols.relink.session import ConnectorSession, Linked

PORT = 7734
#: The channels on which the server sends records and notices.
RECORDS, NOTICES = 0, 1
#: The header of a record: number, epoch, delivery, failures, and seconds of the lease; the name of the stream follows.
HEAD = struct.Struct("<QQIII")
#: How many jobs of a lost link a worker remembers, to settle them over the next link.
REMEMBERED = 5


@attrs.define(eq=False)
class Task:
    """A record that has arrived: the number of its message, and what the worker knows about the job.

    :ivar over: whether the worker has decided, so that the message may be consumed
    :ivar said: whether it has sent a message that ends the job, so that consuming the record has no effect on the job
    """

    message: int
    place: Place
    held: Held
    over: bool = False
    said: bool = False


@attrs.define(eq=False)
class Request:
    """A message that the worker sent and that the server has not consumed.

    :ivar sent: when it was sent
    :ivar tasks: the jobs that the message is about, without those of earlier links
    :ivar refused: the jobs that a notice has reported as refused
    """

    kind: str
    body: dict[str, Any]
    sent: float
    tasks: dict[Place, Task]
    refused: set[Place] = attrs.field(factory=set)
    again: bool = False


class LinkWorker:
    """A worker that receives jobs over one link after another, and answers them."""

    def __init__(self, side: Any, name: str) -> None:
        self.side, self.name, self.world, self.clock = side, name, side.world, side.world.clock
        self.closed = self.paused = False
        self.tasks: list[Task] = []
        self.requests: dict[tuple[int, int], Request] = {}
        self.remembered: list[Task] = []
        self.link: Link | None = None
        self.connection: ConnectorConnection | None = None
        most = self.world.random.choice((None, 1, 3))
        stream = "jobs.*" if side.pattern else side.streams[0]
        endpoint = share_name(stream, NAME, consumer=name, most=most)
        self.terms = Terms(endpoint=endpoint, connector_size=1, listener_size=1)
        self.limits = LinkLimits(window=self.world.random.choice((2, 64)), backlog=256)
        self.endpoint = Endpoint(self.world, name, PORT, servers=side.server.names)
        dice = self.world.random
        options = ConnectionOptions(retry=lambda failures: dice.random() * dice.choice((0.01, 1)))
        self.reconnector = Reconnector(
            self.clock,
            self.endpoint,
            options,
            self._new_connection,
            lambda error: not self.closed,
            self._made,
            self.connection_gone,
        )
        self.reconnector.start()
        self._soon()

    @property
    def held(self) -> dict[Place, Held]:
        """Return the jobs that the worker has not ended."""
        return {task.place: task.held for task in self.tasks if not task.said}

    def later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        self.clock.callLater(seconds, self._run, what, *args)

    def _run(self, what: Callable[..., None], *args: Any) -> None:
        if self.paused:
            self.later(0.1, what, *args)
        elif not self.closed:
            what(*args)

    # The interface that the shell and the connection call:

    def _new_connection(self) -> ConnectorConnection:
        hello = Hello(terms=self.terms, require=False, epoch=0, link_id=0)
        return ConnectorConnection(self, ConnectorSession(self.limits, None, hello=hello, new_link=self._new_link))

    def _made(self, connection: ConnectorConnection) -> None:
        self.connection = connection
        connection.begin()

    def _new_link(self, epoch: int, link_id: int) -> Link:
        return Link(self.terms, True, epoch, link_id, self.limits)

    def connection_gone(self, connection: ConnectorConnection) -> None:
        """Forget the leases that were given over the lost link."""
        if self.connection is not connection:
            return
        self.connection = self.link = None
        self.remembered = [*self.remembered, *(task for task in self.tasks if not task.said)][-REMEMBERED:]
        self.tasks, self.requests = [], {}

    def protocol_broken(self) -> None:
        self.side.history.wrong(f"{self.name}: the server violates the protocol")

    def handle(self, found: Sequence[Any]) -> None:
        """Handle events of the link."""
        for event in found:
            match event:
                case Linked():
                    self.link = event.link
                case events.Received():
                    take = self._record if event.channel == RECORDS else self._notice
                    for message, parts in enumerate(event.messages, event.first):
                        take(message, parts)
                case events.Consumed():
                    for place in [each for each in self.requests if each[0] == event.channel]:
                        if place[1] <= event.last:
                            self._consumed(self.requests.pop(place))
                case events.Finished() if self.link is not None:
                    self.link.forget(event.channel)

    # Messages from the server:

    def _record(self, message: int, parts: Sequence[bytes]) -> None:
        head, payload = bytes(parts[0]), b"".join(map(bytes, parts[1:]))
        seq, epoch, number, _, _ = HEAD.unpack_from(head)
        stream = head[HEAD.size :].decode() or self.side.streams[0]
        self.side.history.release(stream, seq, payload)
        # How long the record was on its way is unknown, so the worker trusts the lease only after it has extended it.
        held = Held(f"{epoch}.{number}", 0.0, json.loads(payload)["bad"])
        self.tasks.append(Task(message, (stream, seq), held))

    def _notice(self, message: int, parts: Sequence[bytes]) -> None:
        notice = json.loads(b"".join(map(bytes, parts)))
        assert self.link is not None
        self.link.consume(NOTICES, message)
        stream = self.side.streams[0]
        request = self.requests.get((notice.get("channel", -1), notice.get("message", -1)))
        if request is None:
            return
        refused = {place_of(each, stream) for each in notice.get("refused", ())}
        request.refused |= refused or ({*request.tasks} if "error" in notice else set())
        request.again = notice.get("retry", False)
        for each in notice.get("extended", ()):
            task = request.tasks.get(place_of(each, stream))
            if task is not None:
                task.held.token = each["token"]

    def _consumed(self, request: Request) -> None:
        """Record that the server has done what *request* asks, except for the jobs that it refused."""
        if request.again:
            self.later(0.3, self._again, self.link, request)
            return
        for place, task in request.tasks.items():
            if request.kind == "extend" and place not in request.refused and task in self.tasks:
                task.held.until = max(task.held.until, request.sent + self.side.book.options["lease"])
                if not task.said:
                    self.side.believes(self, place, task.held)

    def _again(self, link: Link | None, request: Request) -> None:
        if link is None or link is not self.link:
            return
        if not link.channel(0).room:
            self.later(0.3, self._again, link, request)
        else:
            self._send(request.kind, request.body, request.tasks)

    # Actions of the worker:

    def _soon(self) -> None:
        dice, slow = self.world.random, 0.0 if self.side.patient else 2.0 * self.side.book.options["lease"]
        self.later(dice.choice((0.02, 0.05, 0.05, 0.3, 1.0, slow)) * (dice.random() + 0.01), self._act)

    def _act(self) -> None:
        """Do a random action with one of the jobs, then consume the records that are decided."""
        dice, patient = self.world.random, self.side.patient
        open_ = [task for task in self.tasks if not task.over]
        if self.link is not None and self.connection is not None and not self.link.over:
            if self.remembered and not patient and dice.random() < 0.3:
                self._say("done", {task.place: task.held.token for task in [self.remembered.pop()]}, {})
            elif open_:
                self._decide(open_[0] if patient else dice.choice(open_), patient)
            self._consume()
            self.connection.flush_soon()
        self._soon()

    def _decide(self, task: Task, patient: bool) -> None:
        dice = self.world.random
        if task.held.bad:
            kind = "failed" if patient else choose(dice, BAD_KINDS)
        else:
            kind = dice.choice(("done", "plain")) if patient else choose(dice, (*KINDS, ("plain", 8)))
        if kind == "plain":
            task.over = True
        elif kind != "drop" and self._say(kind, {task.place: task.held.token}, {task.place: task}):
            task.over = task.said = kind != "extend"

    def _say(self, kind: str, jobs: dict[Place, str], tasks: dict[Place, Task]) -> bool:
        """Send a message about *jobs*; return False if the link has no room for one."""
        body: dict[str, Any] = {kind: items(self.side, kind, jobs)}
        assert self.link is not None
        if not self.link.channel(0).room:
            return False
        if kind == "done":
            body["publish"] = results(self.side, self.name, jobs)
        self._send(kind, body, tasks)
        return True

    def _send(self, kind: str, body: dict[str, Any], tasks: dict[Place, Task]) -> None:
        assert self.link is not None
        (message,) = self.link.send((0,), (json.dumps(body).encode(),))
        self.requests[0, message] = Request(kind, body, self.clock.seconds(), tasks)

    def _consume(self) -> None:
        """Consume the messages before the first one whose job is not decided."""
        assert self.link is not None
        book = self.side.book
        while self.tasks and self.tasks[0].over:
            task = self.tasks.pop(0)
            if not task.said:
                book.look()
                book.plain.add(book.generation(task.place, task.held.token))
            self.link.consume(RECORDS, task.message)

    def pause(self, paused: bool) -> None:
        """Freeze the process of the worker, or let it continue."""
        if self.paused is not paused:
            self.paused = paused
            if self.connection is not None:
                transport = self.connection.transport
                (transport.pauseProducing if paused else transport.resumeProducing)()

    def close(self) -> None:
        self.closed = True
        if self.connection is not None:
            self.connection.leave()
