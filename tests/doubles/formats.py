"""Write a small journal in today's format, to keep it as a fixture.

    python -m tests.doubles.formats tests/journal/formats/NAME

Run it once after the format has changed, under a new NAME, and commit the files: ``tests/journal/test_formats.py``
reads every fixture with the present code.  A fixture is never written again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import DEFERREDS, InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings, durability
from fyrehose.journal.streams import StreamLimits
from fyrehose.offline import dump
from fyrehose.records import Publish, Run

#: 2026-01-01T00:00:00Z, in microseconds since 1970.
NEW_YEAR = 1_767_225_600_000_000


@implementer(IJournalObserver)
class Silent:
    def durable(self, ends: Any) -> None:
        pass

    def state_changed(self, state: JournalState, reason: str) -> None:
        pass

    def stuck(self, reason: str) -> None:
        pass


@attrs.define(eq=False)
class Author:
    """Appends to the journal in *directory*, one record a second."""

    directory: Path
    limits: StreamLimits = StreamLimits()
    clock: Clock = attrs.field(factory=Clock)
    next: dict[str, int] = attrs.field(factory=dict)
    journal: FileJournal = attrs.field(init=False)

    def open(self, **settings: Any) -> None:
        """Open the journal with *settings* that keep it small; its clock begins at a new year."""

        def now() -> int:
            return NEW_YEAR + int(self.clock.seconds() * 1_000_000)

        chosen: dict[str, Any] = {"min_free": 0, "segment_size": 2 << 10, "stream_limits": self.limits} | settings
        self.journal = FileJournal(
            self.clock,
            self.directory,
            JournalSettings(**chosen),
            clock=RecordClock(now, now),
            worker=InlineWorker(),
        )
        ends: list[Any] = []
        self.journal.open(Silent()).addBoth(ends.append)
        if isinstance(ends[0], Failure):
            ends[0].raiseException()
        self.next = {stream: end + 1 for stream, end in ends[0].items()}

    def append(self, stream: str, *payloads: bytes, **more: Any) -> None:
        self.clock.advance(1.0)
        run = attrs.evolve(Run.of(stream, payloads, source="figg"), **more)
        first = self.next.get(stream, 1)
        self.next[stream] = first + len(run)
        failed: list[Any] = []
        done = Deferred().addErrback(failed.append)
        numbered = run.numbered(first, 0)
        self.journal.submit(Publish([numbered], numbered.room, DEFERREDS, done))
        assert not failed, failed

    def retire(self, *streams: str) -> None:
        failed: list[Any] = []
        self.journal.retire(streams).addErrback(failed.append)
        assert not failed, failed

    def close(self) -> None:
        self.journal.close()

    def abandon(self) -> None:
        """Stop without closing the journal, like a killed process."""
        self.journal.state = JournalState.FAILED
        self.journal.close()


def write(directory: Path) -> None:
    """Write everything that a journal can contain: every part of a run, every kind of batch, sealed segments, a gap.

    Eight streams count as many here, so that there are snapshots; one is retired for ever, and one is used again.
    """
    _write(Author(directory, StreamLimits(inline=2)))
    for path in (directory / "LOCK", *directory.glob("*.new")):
        path.unlink(missing_ok=True)


def _write(author: Author) -> None:
    author.open()
    author.append("log", b"first", b"second", b"")
    author.append("log", b"x" * 600, producer="host-1", topic="syslog", content_type="text/plain", producer_seq=7)
    ids, times = bytes(range(32)), b"".join((NEW_YEAR + i).to_bytes(8, "little") for i in range(2))
    seqs = b"".join(i.to_bytes(8, "little") for i in (5, 9))
    author.append("events/ünï", b"{}", b"[1]", event_ids=ids, event_times=times, producer_seq=seqs)
    for i in range(8):
        author.append("log", b"%d " % i * 100)
    author.close()
    author.open(durability=durability("interval:100"))
    author.append("numbers", b"reserved", b"ahead")
    author.abandon()
    author.open()
    author.append("numbers", b"after the gap")
    author.append("log", b"the last one")
    for i in range(8):
        author.append(f"many-{i}", b"one of many")
    author.retire("many-0", "many-1")
    for i in range(10):
        author.append("log", b"%d " % i * 100)
    author.append("many-1", b"back again")
    for i in range(10):
        author.append("log", b"%d " % i * 100)
    author.close()


def described(directory: Path) -> list[list[Any]]:
    """Return every record of the journal in *directory*: stream, seq, time, names, the producer's numbers, payload."""
    return [
        [
            run.stream,
            record.seq,
            record.time,
            [record.source, record.producer, record.topic, record.content_type],
            [record.producer_seq, record.event_id and record.event_id.hex(), record.event_time],
            bytes(record.payload).hex(),
        ]
        for run in dump.runs(directory, everything=True)
        for record in run.records()
    ]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if place.exists():
        sys.exit(f"{place} exists: a fixture is never written again")
    write(place)
    lines = ",\n".join(json.dumps(line, ensure_ascii=False) for line in described(place))
    (place / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print("\n".join(f"{path.name} {path.stat().st_size}" for path in sorted(place.iterdir())))
