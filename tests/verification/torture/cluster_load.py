"""Publishers and subscribers of a cluster, which know the addresses of all servers and record what servers tell them.

    Notes        the messages that subscribers of any server received, by stream and number, shared by all threads
    Publisher    publishes by Figg, Relink, lumberjack (raw sockets), HTTP (http.client) or event bus
                 (pyzmq); it moves to the next server when one does not acknowledge in time, and sends unacknowledged
                 messages again
    Subscriber   reads every stream from one server with Figg, and resumes after its last record
    Ages         asks one server by HTTP how old its answers are, and compares that with what was acknowledged

These clients share no code with the server.  Each runs in a thread of its own.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
import threading
import time
import urllib.parse
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import listeners
import load
import wire
import zmq

#: After how many seconds without an acknowledgement a publisher moves to the next server.
PATIENCE = 2.0
#: How long publishers pause between two steps, in seconds.
REST = 0.04
#: How many messages may wait for an acknowledgement.
WINDOW = 10
LARGEST = 1 << 12
#: How often the age of a server's answers is asked for, and how long an answer may take to be judged, in seconds.
ASK, ANSWER = 0.1, 0.5
#: The largest payload of each publisher.
SIZES = dict.fromkeys(range(1, 6), LARGEST)


class Notes:
    """The message of each number of each stream, as subscribers received it; a contradiction is a problem."""

    def __init__(self) -> None:
        self.streams: dict[str, array[int]] = {}
        #: how often each message of each publisher is in its stream
        self.kept: dict[int, bytearray] = {}
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def message(self, by: str, stream: str, number: int, data: bytes) -> None:
        author = wire.whose(data, SIZES)
        with self._lock:
            if author is None or number < 1:
                self.problems.append(f"{by}: {stream} {number} was never sent by a publisher: {data[:40]!r}")
                return
            word = author[0] << 40 | author[1]
            known = self.streams.setdefault(stream, array("Q"))
            if len(known) < number:
                known.extend([0] * (number - len(known)))
            if known[number - 1] == 0:
                known[number - 1] = word
                kept = self.kept.setdefault(author[0], bytearray())
                kept.extend(bytes(max(0, author[1] + 1 - len(kept))))
                kept[author[1]] = min(255, kept[author[1]] + 1)
            elif known[number - 1] != word:
                self.problems.append(
                    f"{by}: {stream} {number} is {author}, but another subscriber received {known[number - 1]:x}"
                )

    def wrong(self, what: str) -> None:
        with self._lock:
            self.problems.append(what)


class Publisher(threading.Thread):
    """A thread that publishes until :meth:`stop`, and records acknowledgements.

    :ivar places: the port of the listener of each server
    :ivar acks: when acknowledgements came, by the monotonic clock
    :ivar times: how often each message was sent, for messages that were sent more than once
    """

    protocol = stream = ""

    def __init__(self, number: int, places: list[int], notes: Notes) -> None:
        super().__init__(name=f"publisher {self.protocol}", daemon=True)
        self.number, self.places, self.notes = number, places, notes
        self.stream = self.stream or f"by-{self.protocol}"
        self.acked = self.sent = self.checked = 0
        self.times: dict[int, int] = {}
        self.acks: list[float] = []
        self.tries = 0
        self._at = 0
        self._ended = threading.Event()

    def payload(self, number: int) -> bytes:
        return wire.payload(self.number, number, LARGEST)

    def run(self) -> None:
        while not self._ended.is_set():
            self.tries += 1
            try:
                self.session(self.places[self._at])
            except (OSError, http.client.HTTPException, struct.error, zmq.ZMQError):
                self._at = (self._at + 1) % len(self.places)
                self._ended.wait(0.1)
            except Exception as error:
                self.notes.wrong(f"publisher {self.protocol}: {error!r}")
                return

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def sending(self, number: int) -> None:
        if number <= self.sent:
            self.times[number] = self.times.get(number, 1) + 1
        self.sent = max(self.sent, number)

    def acknowledged(self, number: int) -> None:
        if number > self.acked:
            self.acked = number
            self.acks.append(time.monotonic())

    def session(self, port: int) -> None:
        """Publish to the server at *port* until it fails."""
        raise NotImplementedError

    def was_delivered(self, number: int) -> bool:
        """Return whether a subscriber received the message *number*."""
        kept = self.notes.kept.get(self.number, b"")
        return number == 0 or (number < len(kept) and kept[number] > 0)

    def check(self, acked: int) -> list[str]:
        """Check that messages up to *acked* were received, at most as often as they were sent; return problems."""
        kept = self.notes.kept.get(self.number, bytearray())
        lost = [n for n in range(self.checked + 1, acked + 1) if n >= len(kept) or not kept[n]]
        again = [
            (n, kept[n], self.times.get(n, 1))
            for n in range(self.checked + 1, min(acked + 1, len(kept)))
            if kept[n] > self.times.get(n, 1)
        ]
        self.checked = acked
        problems = []
        if lost:
            problems.append(f"{self.protocol}: {len(lost)} acknowledged messages are LOST, {lost[0]} to {lost[-1]}")
        if again:
            problems.append(f"{self.protocol}: stored more often than sent (number, stored, sent): {again[:5]}")
        if len(kept) > self.sent + 1:
            problems.append(
                f"{self.protocol}: message {len(kept) - 1} is stored, but {self.sent} was the last one sent"
            )
        return problems


class _Windowed(Publisher):
    """A publisher that uses a client of :mod:`load` on one socket."""

    made: Callable[..., Any]

    def __init__(self, number: int, places: list[int], notes: Notes) -> None:
        super().__init__(number, places, notes)
        self.inner = type(self).made(number, self.stream, WINDOW, LARGEST)

    def session(self, port: int) -> None:
        inner = self.inner
        try:
            inner.connect(port)
            progress, acked = time.monotonic(), inner.acked
            while not self._ended.is_set():
                self._count_resent()
                if inner.fill():
                    inner.write()
                self.sent = inner.sent
                assert inner.sock is not None
                if select.select([inner.sock], [], [], REST)[0]:
                    inner.read()
                if inner.wrong:
                    raise ValueError(inner.wrong)
                now = time.monotonic()
                if inner.acked > acked or inner.sent == inner.acked:
                    progress, acked = now, inner.acked
                    self.acknowledged(acked)
                    self._ended.wait(REST)
                elif now - progress > PATIENCE:
                    raise TimeoutError
        finally:
            inner.gone()

    def _count_resent(self) -> None:
        """Count the messages that are about to be sent again on this connection."""
        for first, last in self.inner.resent:
            for n in range(first, last + 1):
                self.times[n] = self.times.get(n, 1) + 1
        self.inner.resent.clear()


class Figg(_Windowed):
    protocol = "figg"
    made = load.Publisher


class Relink(_Windowed):
    """A Relink publisher: messages are stored once, because the next leader resumes the link."""

    protocol = "relink"
    made = listeners.Relink

    def check(self, acked: int) -> list[str]:
        found = super().check(acked)
        if self.inner.peer.begun > 1:
            found.append(f"relink: {self.inner.peer.begun} links were begun; a server did not know the link any more")
        return found


class Lumberjack(_Windowed):
    """A publisher of events with an identity, so that each is stored once even if it is sent again."""

    protocol = stream = "lumberjack"
    made = listeners.Lumberjack

    def _count_resent(self) -> None:
        """Count nothing, because no event may be stored again."""


class Http(Publisher):
    """A publisher by HTTP: each message has an idempotency key, so that it is stored once even if it is sent again.

    :ivar numbers: the number in the stream of each message in ``acks``
    """

    protocol = "http"

    def __init__(self, number: int, places: list[int], notes: Notes) -> None:
        super().__init__(number, places, notes)
        self.numbers: list[int] = []

    def session(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            while not self._ended.is_set():
                number = self.acked + 1
                self.sent = max(self.sent, number)
                headers = {"Idempotency-Key": f"torture-{self.number}-{number}"}
                connection.request("POST", f"/streams/{self.stream}", self.payload(number), headers)
                answer = connection.getresponse()
                body = answer.read()
                if answer.status == 503 and (where := answer.getheader("Location")):
                    self._at = self.places.index(int(urllib.parse.urlsplit(where).port or 80)) - 1
                if answer.status != 200:
                    raise ConnectionError(body)
                first = int(json.loads(body)["first"])
                self.notes.message("http's answer", self.stream, first, self.payload(number))
                self.numbers.append(first)
                self.acknowledged(number)
                self._ended.wait(REST)
        finally:
            connection.close()


class EventBus(Publisher):
    """An event bus publisher: a DEALER and a SUB that know all servers; the BROADCAST of an event acknowledges it."""

    protocol = stream = "eventbus"

    def session(self, port: int) -> None:
        context = zmq.Context.instance()
        dealer, subscriber = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        dealer.setsockopt(zmq.LINGER, 200)
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        for each in (dealer, subscriber):
            each.setsockopt(zmq.RECONNECT_IVL, 100)
            each.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        for base in self.places:
            dealer.connect(f"tcp://127.0.0.1:{base + 2}")
            subscriber.connect(f"tcp://127.0.0.1:{base + 1}")
        try:
            self._talk(dealer, subscriber)
        finally:
            dealer.close()
            subscriber.close()

    def _talk(self, dealer: Any, subscriber: Any) -> None:
        under_way: dict[int, float] = {}  # when each message was last sent
        done: set[int] = set()
        following = self.acked + 1
        while not self._ended.is_set():
            now = time.monotonic()
            due = [n for n, at in under_way.items() if now - at > PATIENCE]
            if len(under_way) < WINDOW:
                due.append(following)
                following += 1
            for number in due:
                try:
                    event = wire.bus_event(b"/torture/", self.number, number, self.payload(number))
                    dealer.send_multipart(event, zmq.NOBLOCK)
                    self.sending(number)
                except zmq.Again:
                    self.sent = max(self.sent, number)  # the message is kept, and sent again later
                under_way[number] = now
            subscriber.poll(20)
            while subscriber.poll(0):
                _, sequence, _, _, _, data = subscriber.recv_multipart()
                self.notes.message("a subscriber of the event bus", self.stream, int.from_bytes(sequence, "big"), data)
                author = wire.whose(data, SIZES)
                if author is not None and under_way.pop(author[1], None) is not None:
                    done.add(author[1])
            while self.acked + 1 in done:
                done.discard(self.acked + 1)
                self.acknowledged(self.acked + 1)
            self._ended.wait(REST)


class Subscriber(threading.Thread):
    """A thread that reads every stream from one server."""

    def __init__(self, name: str, port: int, streams: list[str], notes: Notes) -> None:
        super().__init__(name=f"subscriber of {name}", daemon=True)
        self.port, self.notes = port, notes
        self.positions = dict.fromkeys(streams, 0)
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def run(self) -> None:
        while not self._ended.wait(0.2):
            try:
                self._session()
            except OSError:
                continue
            except Exception as error:
                self.notes.wrong(f"{self.name}: {error!r}")
                return

    def _session(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as peer:
            peer.sendall(b"".join(wire.attach(s.encode(), at) for s, at in self.positions.items()))
            frames, quiet = wire.Frames(), time.monotonic()
            peer.settimeout(0.2)
            while not self._ended.is_set():
                try:
                    chunk = peer.recv(1 << 18)
                except TimeoutError:
                    if time.monotonic() - quiet > 5:  # the server may be frozen, or lost without closing the connection
                        return
                    continue
                if not chunk:
                    return
                quiet = time.monotonic()
                for kind, topic, number, data in frames.feed(chunk):
                    if kind == wire.DATA:
                        self._data(topic.decode(), number, data)

    def _data(self, stream: str, number: int, data: bytes) -> None:
        before = self.positions[stream]
        if number != before + 1:
            self.notes.wrong(f"{self.name}: {stream} goes on from {before} to {number}")
        self.positions[stream] = number
        self.notes.message(self.name, stream, number, data)


class Ages(threading.Thread):
    """A thread that asks one server how old its answers are; an answer that is older than it says is a problem.

    An answer with ``Fyrehose-Age: A`` has everything that was acknowledged A seconds before it was made, so at least
    what was acknowledged A seconds before it was asked for.  No answer is waited for longer than ANSWER seconds, so
    answers of a server that was paused are judged, too, and by at most so much too mildly.

    :ivar judged: how many answers have said their age
    """

    def __init__(self, name: str, port: int, publisher: Http, notes: Notes) -> None:
        super().__init__(name=f"ages of {name}", daemon=True)
        self.port, self.publisher, self.notes = port, publisher, notes
        self.judged = 0
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join(30)

    def run(self) -> None:
        while not self._ended.wait(ASK):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER)
            try:
                while not self._ended.wait(ASK):
                    asked = time.monotonic()
                    connection.request("GET", f"/streams/{self.publisher.stream}?from=1&limit=1")
                    answer = connection.getresponse()
                    answer.read()
                    self.judge(asked, answer.getheader("Fyrehose-Age", "unknown"), answer.getheader("Fyrehose-Last"))
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()

    def judge(self, asked: float, age: str, last: str | None) -> None:
        """Judge an answer.

        :param asked: when it was asked for
        :param age: the age that it says, in seconds, or ``unknown``
        :param last: the number of the last record that it knows; None if there is no stream
        """
        if age == "unknown" or last is None:
            return
        self.judged += 1
        since = asked - float(age)
        known = bisect_left(self.publisher.acks, since)
        needed = self.publisher.numbers[known - 1] if known else 0
        if int(last) < needed:
            self.notes.wrong(
                f"{self.name}: an answer LIES: it says that it is {age} s old, and has {last} records, but {needed} "
                f"was acknowledged {asked - self.publisher.acks[known - 1]:.3f} s before it was asked for"
            )


PUBLISHERS: tuple[type[Publisher], ...] = (Figg, Relink, Lumberjack, Http, EventBus)
