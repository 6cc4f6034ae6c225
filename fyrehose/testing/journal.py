"""A journal in memory with the guarantees of the journal on disk, whose commits and faults a test controls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from fyrehose.errors import Closed, Following, ReadOnly
from fyrehose.interfaces import FileLag, IJournal, IJournalObserver, IKeeper, JournalState, Unread
from fyrehose.journal.commit import DEFERREDS, settle
from fyrehose.observe.meters import JournalMeters, JournalStatus
from fyrehose.records import Publish, Run
from fyrehose.standing import ServerRole, Standing


@implementer(IKeeper)
@attrs.define(eq=False)
class MemoryKeeper:
    """The retention of a journal in memory, which deletes nothing by itself.

    :ivar kept: the subscriptions of programs that read the files
    :ivar sealed: whether all records count as records of a sealed segment
    """

    unread: Callable[[], Sequence[Unread]] = tuple
    kept: list[FileLag] = attrs.field(factory=list)
    sealed: bool = False

    def subscriptions(self) -> list[FileLag]:
        return list(self.kept)

    def delete(self, name: str) -> bool:
        found = [each for each in self.kept if each.name == name]
        self.kept = [each for each in self.kept if each.name != name]
        return bool(found)

    def is_sealed(self, stream: str, seq: int) -> bool:
        return self.sealed


@implementer(IJournal)
@attrs.define(eq=False)
class MemoryJournal:
    """A journal that keeps its records in lists.

    :ivar auto: whether each append is durable at once; if not, a call of :meth:`commit` makes appends durable
    :ivar now: the clock, in microseconds since 1970 UTC
    :ivar monotonic: the clock that never steps, in microseconds
    :ivar cluster: what this server is in its cluster, whatever the state of this journal
    :ivar stream_age: returns the age up to which a stream's records are served, in seconds; 0 for no limit
    :ivar pending: the appends that are not durable, each with the streams that it retires
    :ivar before_read: called with the stream and the first number of each read; the read fails with an error that it
        raises
    """

    auto: bool = True
    now: Callable[[], int] = lambda: 1_000_000
    stream_age: Callable[[str], float] = lambda stream: 0
    monotonic: Callable[[], int] = attrs.field(default=lambda: 0, kw_only=True)
    cluster: Standing = attrs.field(factory=Standing, kw_only=True)
    before_read: Callable[[str, int], object] = attrs.field(default=lambda stream, start: None, kw_only=True)
    epoch: str = attrs.field(default="", kw_only=True)
    window: int = attrs.field(default=1 << 30, kw_only=True)
    meters: JournalMeters = attrs.field(factory=JournalMeters, init=False)
    state: JournalState = attrs.field(default=JournalState.CLOSED, init=False)
    floor: int = attrs.field(default=0, init=False)
    why_not_ready: Callable[[], str] = attrs.field(default=str, init=False)
    keeper: MemoryKeeper = attrs.field(factory=MemoryKeeper, init=False)
    _runs: dict[str, list[Run]] = attrs.field(factory=dict, init=False)
    _oldest: dict[str, int] = attrs.field(factory=dict, init=False)
    #: The last number of each stream that is not retired.
    _ends: dict[str, int] = attrs.field(factory=dict, init=False)
    pending: list[tuple[Publish, Sequence[str]]] = attrs.field(factory=list, init=False)
    _retired: dict[str, int] = attrs.field(factory=dict, init=False)
    _observer: IJournalObserver | None = attrs.field(default=None, init=False)
    _time: int = attrs.field(default=0, init=False)
    #: Why the state changed last.
    _reason: str = attrs.field(default="", init=False)

    def open(self, observer: IJournalObserver) -> Deferred[Mapping[str, int]]:
        self._observer = observer
        self.state = JournalState.WRITABLE if self.cluster.may_write else JournalState.READ_ONLY
        return succeed(dict(self._ends))

    @property
    def clock(self) -> MemoryJournal:
        """Return the clock, whose methods this journal has itself."""
        return self

    def cancel_open(self) -> None:
        """Do nothing, because this journal opens at once."""

    def expect_close(self) -> None:
        """Do nothing, because no append waits for other servers."""

    def submit(self, publish: Publish) -> None:
        assert self.state is JournalState.WRITABLE, "the caller has checked it"
        self._time = max(self._time, self.now())
        for run in publish.runs:
            run.time = self._time
        self._wait(publish, ())

    def retire(self, streams: Sequence[str]) -> Deferred[None]:
        if (refusal := self.standing.refusal) is not None:
            return fail(refusal)
        done: Deferred[None] = Deferred()
        self._wait(Publish([], 0, DEFERREDS, done), streams)
        return done

    def retired(self) -> Mapping[str, int]:
        return self._retired

    def _wait(self, publish: Publish, streams: Sequence[str]) -> None:
        self.pending.append((publish, streams))
        if self.auto:
            self.commit()

    def commit(self) -> None:
        """Make all appends so far durable."""
        assert self._observer is not None
        pending, self.pending = self.pending, []
        ends: dict[str, int] = {}
        for publish, streams in pending:
            for run in publish.runs:
                last = self._retired.pop(run.stream, None)
                if last is not None:
                    self._oldest[run.stream] = last + 1
                expected = self._ends.get(run.stream, self.floor if last is None else last) + 1
                assert run.first_seq == expected, "numbers must follow on"
                self._runs.setdefault(run.stream, []).append(run)
                ends[run.stream] = self._ends[run.stream] = run.last_seq
            for stream in streams:
                self._retired[stream] = self._ends.pop(stream)
                ends.pop(stream, None)
                for known in (self._runs, self._oldest):
                    known.pop(stream, None)
        if ends:
            self._observer.durable(ends)
        settle([publish for publish, _ in pending])

    @property
    def standing(self) -> Standing:
        """Return what this server is now: see :class:`IJournal`."""
        if self.state is JournalState.WRITABLE:
            return self.cluster
        if self.state is JournalState.READ_ONLY:
            return self.cluster.refusing(ReadOnly(self._reason))
        closed = Closed(f"the journal is {self.state.value}")
        return attrs.evolve(self.cluster, caught_up=False, leads_alone=False, refusal=closed)

    def follow(self, leader: str = "") -> None:
        """Begin, with the next :meth:`open`, as the follower of the server at the address *leader*, until that enters
        the state WRITABLE.
        """
        refusal = Following("another server leads; publish there", leader)
        self.cluster = Standing(ServerRole.FOLLOWER, leader=leader, leads_alone=False, refusal=refusal)

    def enter(self, state: JournalState, reason: str) -> None:
        """Change to ``state``: before WRITABLE, what is pending becomes durable; FAILED drops it."""
        assert self._observer is not None
        if state is JournalState.WRITABLE:
            self.commit()
        self.state, self._reason = state, reason
        if state is JournalState.WRITABLE and not self.cluster.may_write:
            self.cluster = Standing(ServerRole.LEADER)
        if state is JournalState.FAILED:
            self.pending.clear()
        self._observer.state_changed(state, reason)

    def forget(self, stream: str, oldest: int) -> None:
        """Drop the runs of ``stream`` that end before ``oldest``, as retention does."""
        self._runs[stream] = [run for run in self._runs[stream] if run.last_seq >= oldest]
        self._oldest[stream] = self._runs[stream][0].first_seq if self._runs[stream] else oldest

    def empty(self, stream: str) -> None:
        """Drop all records of ``stream`` and keep its last number, as retention does."""
        last = self._ends[stream]
        del self._runs[stream]
        self._oldest[stream] = last + 1

    def bounds(self, stream: str) -> tuple[int, int]:
        """Return the oldest served and the last number of *stream*; see :meth:`.IJournal.bounds`."""
        if stream in self._retired:
            return self._retired[stream] + 1, self._retired[stream]
        last = self._ends.get(stream, self.floor)
        young = [run.first_seq for run in self._runs.get(stream, ()) if not self.expired(stream, run.time)]
        oldest = self._oldest.get(stream, 1)
        if self._runs.get(stream):
            oldest = max(oldest, young[0] if young else last + 1)
        return oldest, last

    def first_since(self, stream: str, time: int) -> int:
        """Return the first number from *time* on; see :meth:`.IJournal.first_since`."""
        first, last = self.bounds(stream)
        found = next((run.first_seq for run in self._runs.get(stream, ()) if run.time >= time), last + 1)
        return max(first, found)

    def expired(self, stream: str, time: int) -> bool:
        age = self.stream_age(stream)
        return age > 0 and time < self.now() - age * 1_000_000

    def ends(self) -> Mapping[str, int]:
        return self._ends

    def read(self, stream: str, start: int, max_bytes: int) -> tuple[Run, ...]:
        """Return the records of *stream* from number *start* on; see :meth:`.IJournal.read`."""
        self.before_read(stream, start)
        runs = [run for run in self._runs.get(stream, ()) if not self.expired(stream, run.time)]
        found: list[Run] = []
        for run in runs[bisect_left(runs, start, key=lambda run: run.last_seq) :]:
            part = run.slice(max(0, start - run.first_seq), len(run))
            count = part.fitting(max_bytes)
            if found and len(part.payload) > max_bytes and count == 1:
                break
            found.append(part.slice(0, count))
            max_bytes -= len(found[-1].payload)
            if count < len(part) or max_bytes <= 0:
                break
        return tuple(found)

    def latest(self, size: int, source: str) -> Iterator[Run]:
        """Yield all runs, stream by stream, and of each stream the newest run first."""
        for runs in list(self._runs.values()):
            yield from reversed(runs)

    def status(self) -> JournalStatus | None:
        """Return None, because a journal in memory has no files."""
        return None

    def close(self) -> Deferred[None]:
        if self.state is JournalState.WRITABLE:
            self.commit()
        self.state = JournalState.CLOSED
        self.pending.clear()
        return succeed(None)
