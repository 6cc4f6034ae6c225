"""Simulate a server: the real service, broker and journal, on a disk that loses unsynced data in a power cut.

Blocking calls are executed at once and answered later, so that other events happen in between.  A power cut leaves one
of the states of the disk that are possible after the last answered call, because clients may know of that answer.  If
only the process is killed, all data is left, and a later power cut can still take what was not synced.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
from damage import Damage, flip
from history import History
from synced import Seen, SyncedFiles
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from world import BELIEVED, Host, Violation, World

from fyrehose.broker.once import ENTRY
from fyrehose.broker.policy import OPEN
from fyrehose.errors import JournalCorrupt
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.scan import SUFFIX, read_mark
from fyrehose.journal.settings import JournalSettings, durability
from fyrehose.journal.streams import StreamLimits
from fyrehose.server.service import Fyrehose
from tests.doubles.disk import Kept, Tree, image, what_stays

#: How many sequence numbers the journal reserves at once.
RESERVE = 40
#: Bytes of the disk that the journal leaves free.
MIN_FREE = 1 << 20
#: How long a due sync may wait for other jobs of the worker thread, in seconds.
QUEUE = 3.0
#: How long a wall clock must run steadily after a large step until the server trusts it, in seconds, less a margin.
SETTLED = 590.0


class Disk(SyncedFiles):
    """A disk that is either full or has enough free space."""

    def __init__(self, directory: Path, kept: Kept, server: Server) -> None:
        super().__init__(directory, kept, server.world.clock.seconds, server.written, server.check_deletion)
        self.server = server

    def free(self, directory: Path) -> int:
        # The free space suffices for a copy of another server's journal, too.
        return 0 if self.server.full else 64 * MIN_FREE


class SimulatedWorker:
    """A worker thread of the journal that executes one job after the other and answers each after a delay."""

    def __init__(self, host: Host, files: SyncedFiles) -> None:
        self.host, self.files = host, files
        self.jobs: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()
        self.busy = False
        #: how many calls of the disk are answered, so that clients may know of them
        self.answered = len(files.log)
        #: the last number of each stream that survived any power cut at the time of the last answer
        self.certain = dict(files.ends())
        self._slow_until = 0.0

    def stall(self, seconds: float) -> None:
        """Let the disk take *seconds* for what it does next."""
        self._slow_until = self.host.world.clock.seconds() + seconds

    @property
    def _stalls_for(self) -> float:
        return float(self._slow_until - self.host.world.clock.seconds())

    def call(self, job: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((job, done))
        self._next()
        return done

    @property
    def idle(self) -> bool:
        return not self.busy and not self.jobs

    def stop(self) -> None:
        while self.jobs:
            job, _ = self.jobs.popleft()
            job()

    def _next(self) -> None:
        if self.busy or not self.jobs:
            return
        self.busy = True
        job, done = self.jobs.popleft()
        try:
            result: Any = job()
        except Exception:
            result = Failure()
        dice = self.host.world.random
        delay = dice.random() * dice.choice((0.001, 0.01, 0.3))
        self.host.callLater(max(delay, self._stalls_for), self._answer, done, result, len(self.files.log))

    def _answer(self, done: Deferred[Any], result: Any, told: int) -> None:
        self.busy = False
        self._known(told)
        self._next()
        done.callback(result)

    def _known(self, told: int) -> None:
        self.answered, self.certain = told, dict(self.files.ends())

    # The interface of the journal's pace; at random the disk counts as fast, so that the reactor itself commits:

    @property
    def near(self) -> bool:
        return bool(self.host.world.random.random() < 0.5) and self._stalls_for <= 0

    def took(self, seconds: float) -> None:
        if not self.busy:  # the reactor executed the call itself, so its result is known at once
            self._known(len(self.files.log))


@attrs.frozen
class Watcher:
    """A journal's observer that calls *look* before it passes each commit on to *observer*."""

    observer: Any
    look: Callable[[], None]

    def durable(self, ends: Any) -> None:
        self.look()
        self.observer.durable(ends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observer, name)


class Server:
    """One journal, and the server that is started on it again and again (its *lives*).

    :ivar name: the name of this server
    :ivar names: the names of all servers that clients know
    :ivar listeners: functions (host, broker) -> service that open a protocol's listener in each life, and whether only
        a leader opens it
    :ivar on_crash: called with the name of the server when a life has ended
    :ivar written: when the last record of each segment was synced, by the segment's base
    :param gaps: whether records may be lost, by the options, by damage, or by retention
    """

    def __init__(self, world: World, history: History, root: Path, gaps: bool = False, name: str = "") -> None:
        self.world, self.history, self.root, self.gaps, self.name = world, history, root, gaps, name
        self.names = (name,)
        self.listeners: list[tuple[Callable[[Host, Any], Any], bool]] = []
        self.on_crash: list[Callable[[str], None]] = []
        self.lives = self.crashes = self.damages = 0
        self.open = self.up = False
        self.settings = self._settings()
        self.again = world.random.choice((0.0, 0.0, 0.3))  #: how often it crashes while it starts
        self.host: Host
        self.journal: FileJournal
        self.files: Disk
        self.full = self.was_full = False
        self.worker: SimulatedWorker
        self.service: Fyrehose
        self.left = Kept(Tree())
        self.written: dict[int, float] = {}
        self.failures: list[Exception] = []
        self.watching = False
        self.damage: Damage | None = None
        self.to_be_damaged = self.quarantine = False
        #: whether the power was cut since the server last ran, and the last numbers that survived it for certain
        self.power_cut = False
        self.certain: dict[str, int] = {}
        #: whether records may have a wrong time: the server began with a wrong clock, or came to trust one
        self.misled = False
        history.may_be_lost, history.right_time = self._may_be_lost, self._is_right_time
        history.seconds = world.clock.seconds
        history.synced = self.settings.durability.mode == "batch"

    def _settings(self) -> JournalSettings:
        dice = self.world.random
        settings = JournalSettings(
            min_free=MIN_FREE,
            segment_size=dice.choice((1 << 10, 4 << 10, 64 << 10)),
        )
        if not self.gaps:
            return settings
        mode = dice.choice(("batch", "batch", "batch", "interval:5", "interval:700", "never"))
        retention = dice.choice(({}, {}, {"keep_bytes": 3 << 10}, {"keep_bytes": 16 << 10}, {"keep_age": 3.0}))
        return attrs.evolve(settings, durability=durability(mode), **retention)

    def retain(self, dice: Random) -> None:
        """Choose options of retention for a server that loses no other records; the history sees each record before."""
        self.watching = True
        kept = dice.choice(({}, {}, {"keep_bytes": 3 << 10}, {"keep_bytes": 16 << 10}, {"keep_age": 3.0}))
        waiting = dice.choice(({}, {"subscription_timeout": 2.0}, {"subscription_bytes": 1 << 10}))
        self.settings = attrs.evolve(self.settings, **kept, **waiting)

    def listen(self, make: Callable[[Host, Any], Any], only_leading: bool = False) -> None:
        """Add a listener that each life of the server opens.

        :param only_leading: whether a server that follows another one closes it
        """
        self.listeners.append((make, only_leading))

    def start(self) -> None:
        """Start the next life, on the files that the last one has left."""
        self.lives += 1
        files = self.left.files()
        untold = not any(name.endswith(SUFFIX) for name in files)
        self.misled = self.misled or (untold and abs(self.world.lie) > BELIEVED)
        directory = self.root / f"{self.name}life-{self.lives}"
        directory.mkdir()
        for name, content in files.items():
            directory.joinpath(name).write_bytes(content)
        if self.to_be_damaged and self.damage is None and not self.left.pending:
            self._hurt(directory)
        self.host = Host(self.world, self.name)
        self.files = self._make_disk(directory)
        self._serve()
        if self.world.random.random() < self.again:
            self.host.callLater(0, self.crash)

    def _serve(self) -> None:
        """Open the journal and the listeners."""
        self.worker = SimulatedWorker(self.host, self.files)
        self.journal = self._make_journal(self.files.directory)
        self.service = Fyrehose(self.host, self.journal, policy=OPEN, on_open=self._opened, on_failure=self._ended)
        self.service.broker.counters.seconds = self.host.seconds
        for make, only_leading in self.listeners:
            service = make(self.host, self.service.broker)
            if only_leading:
                self.service.add_for_leader(service)
            else:
                service.setServiceParent(self.service)
        self.service.startService().addCallback(self._started).addErrback(self._failed)

    def _make_disk(self, directory: Path) -> Disk:
        return Disk(directory, self.left, self)

    def _make_journal(self, directory: Path) -> FileJournal:
        return FileJournal(
            self.host,
            directory,
            attrs.evolve(self.settings, quarantine=self.quarantine, stream_limits=StreamLimits(reserve=RESERVE)),
            files=self.files,
            clock=RecordClock(self.world.now, self.world.monotonic),
            worker=self.worker,
            pace=self.worker,
        )

    def _ended(self, reason: Exception) -> None:
        """Record that the server cannot continue, which is a failure of the simulation."""
        self.failures.append(reason)

    def _hurt(self, directory: Path) -> None:
        """Change bits in one of the files in *directory* that the last life has left."""
        self.to_be_damaged = False
        tree = self.left.synced
        self.damage = flip(tree, read_mark(directory), self.world.random)
        if self.damage is not None:
            self.damages += 1
            self.world.note(f"damaged: {self.damage}")
            directory.joinpath(self.damage.name).write_bytes(tree.contents[tree.names[self.damage.name]])

    def _opened(self) -> None:
        """Check the recovered journal before any listener is open."""
        self.open = self.files.running = True
        self.history.attach(self.name, self.journal, self.files)
        if self.watching:
            self.journal._observer = Watcher(self.journal._observer, self.history.look)
        if self.damage is not None and self.damage.matters:
            if not self.quarantine:
                self.history.wrong(f"the server starts in spite of damage: {self.damage}")
            if not self.damage.is_set_aside(self.files.directory):
                self.history.wrong(f"quarantine has replaced damage without keeping it: {self.damage}")
        self.history.recovered()
        self.damage, self.quarantine, self.power_cut = None, False, False

    def _started(self, _: Any) -> None:
        self.up = True
        self.world.note(f"server up, {dict(sorted(self.journal.ends().items()))}")

    def _failed(self, failure: Failure) -> None:
        if self.damage is None or not self.damage.matters or not failure.check(JournalCorrupt) or self.open:
            self.failures.append(failure.value)
            return
        if self.quarantine:
            self.failures.append(Violation(f"quarantine of {self.damage}: {failure.getErrorMessage()}"))
            return
        # The simulated operator restores the file, or starts with --quarantine and gives the damaged records up.
        why = failure.getErrorMessage().replace(f"{self.files.directory}/", "")
        self.world.note(f"the server does not start: {why}")
        self.left = what_stays(self.files, len(self.files.log))
        if self.gaps and self.world.random.random() < 0.7:
            self.quarantine = True
        else:
            self.damage.undo(self.left.synced)
            self.damage = None
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    def leading_broker(self) -> Any:
        """Return the broker that accepts messages; None if the server is down."""
        return self.service.broker if self.open else None

    def crash(self) -> None:
        """Cut the power or kill the process, even while the server starts or stops; it starts again a little later."""
        if self.host.dead:
            return
        if self.open:
            self.history.look()
            self.history.note_deleted()
        dice, files = self.world.random, self.files
        upto = dice.randint(self.worker.answered, len(files.log))
        self.crashes += 1
        killed = dice.random() < 0.3 and not self.to_be_damaged
        self.world.note(f"{'kill' if killed else 'power cut'}, {upto} of {len(files.log)} steps")
        # After a kill all written data is left; after a power cut, the synced data and a random part of the rest.
        self.left = what_stays(files, upto) if killed else Kept(Tree.of(image(files, upto, dice)))
        self.power_cut = self.power_cut or not killed
        if self.open or self.lives == 1:
            self.certain = self.worker.certain
        self._end()
        self.world.clock.callLater(dice.random() * dice.choice((0.1, 3.0)), self.start)

    def hurt(self) -> None:
        """Cut the power, and change bits of durable data before the server starts again."""
        self.to_be_damaged = True
        self.crash()

    def fill(self, seconds: float) -> None:
        """Let the disk be full for *seconds*."""
        self.world.note("full")
        self.full = self.was_full = True
        self.world.clock.callLater(seconds, setattr, self, "full", False)

    def stall(self, seconds: float) -> None:
        """Let the disk take *seconds* for the next write and sync, if the server is up."""
        if self.up:
            self.world.note("stalled")
            self.worker.stall(seconds)

    def restart(self) -> None:
        """Stop in order, and start again."""
        if not self.up:
            return
        self.history.note_deleted()
        self.up = self.open = False
        self.world.note("stopping")
        self.service.stopService().addCallback(self._stopped)

    def _stopped(self, _: Any) -> None:
        if self.host.dead:
            return
        self.world.note("stopped")
        self.left, self.certain = what_stays(self.files, len(self.files.log)), dict(self.files.ends())
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    def _end(self) -> None:
        self.up = self.open = False
        self.history.detach(self.name)
        self.host.crash()
        for tell in self.on_crash:
            tell(self.name)
        self.files.close_all()
        if self.journal._log.lock >= 0:
            os.close(self.journal._log.lock)
            self.journal._log.lock = -1
        shutil.rmtree(self.files.directory)

    # Rules:

    def check(self) -> None:
        """Check the rules after a step."""
        if self.failures:
            raise Violation(f"the server failed: {type(self.failures[0]).__name__}: {self.failures[0]}")
        if self.history.problems:
            raise Violation(self.history.problems[0])
        counts = self.service.broker.counters.counts if self.up else {}
        if long := [name for _, name in counts if name.startswith("long-turn-")]:
            raise Violation(f"a turn cost more than 50 ms: {', '.join(long)}")
        self.history.look()
        if self.open and self.settings.durability.mode == "interval":
            since = self.history.oldest_unsynced()
            late = 0.0 if since is None else self.world.clock.seconds() - since
            if late > self.settings.durability.seconds + QUEUE:
                raise Violation(
                    f"a record is still not synced {late:.1f} s after it became durable: {self.settings.durability}"
                )

    def _may_be_lost(self, stream: str, seq: int) -> bool:
        if self.damage is not None and self.damage.has(stream, seq):
            return True
        batch = self.settings.durability.mode == "batch"
        return self.power_cut and not batch and seq > self.certain.get(stream, 0)

    def _believed(self) -> bool:
        """Return whether times of records can be checked: the server cannot have trusted a wrong clock."""
        world = self.world
        settled = world.clock.seconds() - world.steady_since > SETTLED
        self.misled = self.misled or (world.leapt and settled)
        return not self.misled

    def _is_right_time(self, time: int) -> bool:
        world = self.world
        return not self._believed() or abs(time - world.honest()) <= world.stepped + 2 * BELIEVED

    def check_deletion(self, seen: Seen, end: int) -> None:
        """Check that retention may delete the segment *seen* of a log that ends at *end*.

        :raises Violation: the options say that the segment must be kept
        """
        settings, seconds, end = self.settings, self.world.clock.seconds(), max(end, self.journal.status().position)
        # While the server stops this is the only report: its journal is already closed when the history reads it last.
        self.history.note_deletion(seen.ends)
        if settings.keep_bytes and end - seen.base > settings.keep_bytes:
            return
        age = seconds - self.written.get(seen.base, 0.0) + (self.world.stepped + BELIEVED * self.world.leapt) / 1e6
        if settings.keep_age and (age >= settings.keep_age or not self._believed() or not self.history.synced):
            return
        raise Violation(f"the segment at {seen.base} of {end} is deleted after {age:.1f} s although it must be kept")

    def still_counted(self) -> str:
        """Return what is still counted although everything is durable and every client has gone; empty: nothing."""
        if not self.up:
            return ""
        broker = self.service.broker
        budget = broker.budget
        counted = {
            "bytes of publishes that are not durable": budget.held,
            "networks with publishes in the journal's queue": budget.submitting,
            "bytes of slots of large frames": budget.slots.used,
            "frames that wait for a slot": budget.slots.waiting,
            "bytes that nobody reads": budget.unread.used,
            "bytes of subscriptions that do not exist": budget.kept - broker.table.room.memory.used,
            "bytes that are neither of keys nor of a table": (budget.used - budget.kept) % ENTRY,
            **{f"{protocol} {name}": value for (protocol, name), value in broker.counters.gauges.items()},
        }
        found = ", ".join(f"{value} {what}" for what, value in counted.items() if value)
        return found and f"{self.name or 'the server'} still counts {found}"

    def close(self) -> None:
        """End the simulation."""
        if self.files.directory.exists():
            self._end()
