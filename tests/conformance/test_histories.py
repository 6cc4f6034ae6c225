"""Compare a journal with a model over random histories: every read must return what the model has.

The histories have several streams, sizes, segments, retention, retired streams, snapshots of streams, orderly restarts
and crashes; the model is a dictionary of dictionaries.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.internet.task import Clock
from zope.interface import implementer

from fyrehose.interfaces import IJournalObserver, JournalState
from fyrehose.journal.commit import InlineWorker
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings, durability
from fyrehose.journal.streams import INLINE, MOST_RETIRED, StreamLimits
from fyrehose.offline.verify import verify
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.killed import close_files

STREAMS = ("a", "b", "é", "long" * 60, "1", "2", "3", "4")
streams = st.sampled_from(STREAMS)
modes = st.sampled_from(["batch", "batch", "never", "interval:50"])


@implementer(IJournalObserver)
class Told:
    """The observer of the journal, which records the durable end of each stream."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    def durable(self, ends: Mapping[str, int]) -> None:
        for stream, end in ends.items():
            assert end > self.ends.get(stream, 0), f"the end of {stream!r} does not rise"
        self.ends.update(ends)

    def state_changed(self, state: JournalState, reason: str) -> None:
        raise AssertionError(f"{state}: {reason}")


class Histories(RuleBasedStateMachine):
    @initialize(
        segment_size=st.sampled_from([2048, 8192, 1 << 20]),
        keep=st.sampled_from([0, 0, 20_000]),
        mode=modes,
        inline=st.sampled_from([0, 2, INLINE]),
        most_retired=st.sampled_from([1, 3, MOST_RETIRED]),
    )
    def begin(self, segment_size: int, keep: int, mode: str, inline: int, most_retired: int) -> None:
        self.limits = StreamLimits(inline, most_retired)
        self.directory = Path(tempfile.mkdtemp(prefix="fyrehose-model-"))
        self.segment_size, self.keep = segment_size, keep
        #: the payload of each written number, by stream; numbers may be missing after a crash
        self.model: dict[str, dict[int, bytes]] = {}
        self.ends: dict[str, int] = {}
        #: the last number that each stream ever had, and the streams that were retired at some time
        self.last: dict[str, int] = {}
        self.were_retired: set[str] = set()
        self.oldest = dict.fromkeys(STREAMS, 1)
        self.written = 0
        self.open(mode)

    def open(self, mode: str) -> None:
        self.told = Told()
        self.mode = mode
        self.clock = Clock()
        self.journal = FileJournal(
            self.clock,
            self.directory / "j",
            JournalSettings(
                min_free=0,
                segment_size=self.segment_size,
                keep_bytes=self.keep,
                durability=durability(mode),
                verify=1 << 30,
                stream_limits=self.limits,
            ),
            worker=InlineWorker(),
        )
        opened: list[Any] = []
        self.journal.open(self.told).addBoth(opened.append)
        assert isinstance(opened[0], Mapping), opened[0]
        ends = dict(opened[0])
        for stream, end in self.ends.items():
            assert ends[stream] >= end, "no number is given out twice"
            assert ends[stream] == end or self.crashed_unsynced, "numbers follow on"
        assert ends.keys() <= self.ends.keys() | self.model.keys()
        self.ends = ends
        self.crashed_unsynced = False

    crashed_unsynced = False

    @rule(
        runs=st.lists(
            st.tuples(streams, st.lists(st.integers(0, 300), min_size=1, max_size=6), st.booleans()),
            min_size=1,
            max_size=4,
        )
    )
    def append(self, runs: list[tuple[str, list[int], bool]]) -> None:
        made, firsts = [], []
        for stream, sizes, numbered in runs:
            first = self.end(stream) + 1
            assert first > self.last.get(stream, 0), "no number is given out twice"
            payloads = [b"%s %d " % (stream[:1].encode(), first + i) + b"." * size for i, size in enumerate(sizes)]
            made.append(Run.of(stream, payloads, source="test", producer_seq=first if numbered else None))
            firsts.append(first)
            self.ends[stream] = self.last[stream] = first + len(payloads) - 1
            self.model.setdefault(stream, {}).update(zip(range(first, first + len(payloads)), payloads, strict=True))
        appended = append_runs(self.journal, made, firsts)
        assert appended.called
        assert {s: self.told.ends[s] for s, _, _ in runs} == {s: self.ends[s] for s, _, _ in runs}

    def end(self, stream: str) -> int:
        """Return the last number of a stream, even if it is retired."""
        return self.ends.get(stream) or self.journal.retired().get(stream, self.journal.floor)

    @rule(retired=st.lists(streams, min_size=1, max_size=3))
    def retire(self, retired: list[str]) -> None:
        done: list[Any] = []
        self.journal.retire(retired).addBoth(done.append)
        assert done == [None]
        for stream in retired:
            self.told.ends.pop(stream, None)
            if self.ends.pop(stream, None) is not None:
                self.model[stream] = {}
                self.were_retired.add(stream)
        assert self.journal.ends().keys() == self.ends.keys()

    @rule(stream=streams, payload=st.integers(4000, 50_000))
    def append_large(self, stream: str, payload: int) -> None:
        self.append([(stream, [payload], False)])

    @rule(mode=modes)
    def restart(self, mode: str) -> None:
        self.journal.close()
        self.open(mode)

    @rule(mode=modes)
    def crash(self, mode: str) -> None:
        """Kill the process: written data stays in the kernel, and the lock is released."""
        self.clock = Clock()  # nothing calls the journal of the killed process again
        close_files(self.directory / "j")
        self.crashed_unsynced = self.mode != "batch"
        self.open(mode)

    @rule()
    def forget_the_indexes(self) -> None:
        for path in (self.directory / "j").glob("*.index"):
            path.unlink()

    @rule(seconds=st.floats(0.01, 3))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(stream=streams, data=st.data(), max_bytes=st.sampled_from([1, 100, 3000, 1 << 20]))
    def read(self, stream: str, data: st.DataObject, max_bytes: int) -> None:
        """Read from a random number on: everything that is kept, once, in order, in runs of the requested size."""
        start = data.draw(st.integers(1, self.end(stream) + 2))
        oldest, last = self.journal.bounds(stream)
        wanted = [(n, p) for n, p in sorted(self.model.get(stream, {}).items()) if n >= max(start, oldest)]
        found: list[tuple[int, bytes]] = []
        while runs := self.journal.read(stream, start, max_bytes):
            records = [record for run in runs for record in run.records()]
            assert len(records) == 1 or sum(len(record.payload) for record in records) <= max_bytes
            found += [(record.seq, record.payload) for record in records]
            start = records[-1].seq + 1
        assert found == wanted
        assert last == self.end(stream)

    @invariant()
    def bounds_only_rise(self) -> None:
        for stream in STREAMS:
            oldest, last = self.journal.bounds(stream)
            assert self.oldest[stream] <= oldest <= last + 1
            assert self.keep or oldest == 1 or stream in self.were_retired or self.journal.floor
            self.oldest[stream] = oldest
            assert last == self.end(stream)

    def teardown(self) -> None:
        self.journal.close()
        report = verify(self.directory / "j")
        shutil.rmtree(self.directory)
        problems = [str(problem) for problem in report.problems]
        assert not problems, problems


Histories.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestHistories = Histories.TestCase
