"""Simulate one complete server of a cluster, and check the rules that each server has to keep.

the bytes that it has released are the valid bytes of the shared log, at the same positions
it stops only if its disk failed, or if it is too far behind and no other server offers a journal to copy
when it was deposed or has to copy another journal, it opens its journal again in the same process
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any, Protocol
from unittest.mock import patch

import attrs
from damage import Damage
from disks import FAULT, FaultyDisk, bytes_between, copy_journal, mark_of
from server import RESERVE, Disk, Server
from sharedlog import SharedLog
from twisted.python.failure import Failure
from views import ClusterHistory
from world import Violation, World

from fyrehose.cluster.replicated import replicated
from fyrehose.cluster.role import State
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import JournalCorrupt, JournalUnreachable
from fyrehose.interfaces import JournalState
from fyrehose.journal import scan
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.commit import Far
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.streams import StreamLimits
from fyrehose.offline.backup import Backup
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import check_identity, place
from tests.doubles.disk import Kept, RecordingFiles, Tree, what_stays

#: Reasons for which a server may stop: its disk failed, the shared log begins behind its journal, or it is no member.
REASONS = (FAULT, "with `fyrehose journal restore --exact`", "the journal is failed", "is not a member of the cluster")
#: A reason for which a server never opens its journal again: the simulated shared log loses no entries.
LOST = "the shared log has lost entries"
#: How long a leader may accept messages without an answer of the shared log, in seconds, with a small margin.
UNANSWERED = 8.0


class Others(Protocol):
    """The methods of :class:`cluster.Cluster` that a member calls."""

    log: SharedLog
    settings: JournalSettings
    replication: ReplicationSettings
    members: list[Member]
    fills_itself: bool
    fills: int
    wipes: int
    freezes: int
    faults: int
    reopenings: int

    def lose(self) -> None: ...

    def may_lose(self, member: Member) -> bool: ...


class Member(Server):
    """One server of a cluster.

    :ivar thawed: when it last continued after a freeze
    :ivar pending_since: since when its appends wait for the shared log; None while none waits
    :ivar alias: its name as a member; a machine that has lost its disk comes back under another name
    :ivar reopens: whether the process opens its journal again once it is closed
    :ivar is_behind: whether the journal of another server is copied before the next start
    :ivar mark: its released bytes were compared with the shared log up to this position
    """

    def __init__(self, world: World, history: ClusterHistory, root: Path, name: str, cluster: Others) -> None:
        self.cluster, self.alias = cluster, name
        self.is_behind = self.is_ending = self.faulted = self.reopens = False
        self.mark, self.thawed = 0, 0.0
        self.pending_since: float | None = None
        super().__init__(world, history, root, name=name)
        self.again = 0.0

    def _settings(self) -> JournalSettings:
        return self.cluster.settings

    def _make_disk(self, directory: Path) -> Disk:
        self.faulted = False
        return FaultyDisk(directory, self.left, self)

    def _make_journal(self, directory: Path) -> FileJournal:
        self.is_ending, self.reopens, self.mark = False, False, 0
        cluster = self.cluster
        return replicated(
            self.host,
            directory,
            attrs.evolve(self.settings, stream_limits=StreamLimits(reserve=RESERVE)),
            files=self.files,
            clock=RecordClock(self.world.now, self.world.monotonic),
            worker=self.worker,
            pace=Far(),
            replication=attrs.evolve(
                cluster.replication,
                name=self.alias,
                address=f"{self.name}:8117",
                journal=self.name if cluster.fills_itself else "",
            ),
            shared_log=cluster.log.connect(self.host, self.alias),
            on_reopen=self._reopen,
            copy=self._copy if cluster.fills_itself else None,
            in_thread=lambda copy, *what: self.worker.call(lambda: copy(*what)),
            incarnation=self.world.random.getrandbits(63),
        )

    # Why it stops:

    def _reopen(self, reason: str) -> None:
        self.world.note(f"{self.name} is opened again: {reason}")
        if LOST in reason:
            self.failures.append(Violation(reason))
        if not self.is_ending:
            self.reopens = True
            self.cluster.reopenings += 1
            self._leave()

    def _plain(self, text: str) -> str:
        """Return *text* without the path of the directory, which differs between two runs of one seed."""
        return text.replace(str(self.root), "")

    def _ended(self, reason: Exception) -> None:
        self.reopens = False
        self.world.note(f"{self.name} ends: {self._plain(str(reason))}")
        self.is_behind = self.is_behind or REASONS[1] in str(reason)
        failed = self.faulted and self.journal.state is JournalState.FAILED
        if self.is_ending or failed or any(expected in str(reason) for expected in REASONS):
            self._leave()
        else:
            self.failures.append(reason)

    def _leave(self) -> None:
        """Stop in order, like a process that cannot continue, and start again."""
        if not self.is_ending:
            self.is_ending = True
            self.host.callLater(0, self._stop)

    def _stop(self) -> None:
        self.up = self.open = False
        self.world.note(f"{self.name} is stopping")
        self.service.stopService().addCallbacks(self._stopped, self._not_stopped)

    def _stopped(self, result: Any) -> None:
        if not self.reopens:
            super()._stopped(result)
        elif not self.host.dead:
            self.world.note(f"{self.name} is closed, and opens again")
            self.history.detach(self.name)
            self.files.running = False
            self._serve()

    def _not_stopped(self, failure: Failure) -> None:
        self.reopens = False
        if FAULT in failure.getErrorMessage():
            self._stopped(None)
        else:
            self.failures.append(failure.value)

    def _failed(self, failure: Failure) -> None:
        self.reopens = False
        why = self._plain(failure.getErrorMessage())
        if FAULT in why or (self.is_ending and not self.open):
            self.world.note(f"{self.name} does not start: {why}")
            self._stopped(None)
        elif self.damage is not None and failure.check(JournalCorrupt):
            self.world.note(f"{self.name} does not start: {why}")
            self._repair(self.damage)
        else:
            self.failures.append(failure.value)

    def _repair(self, damage: Damage) -> None:
        """Repair damage as an operator does: restore the file, or copy another server's journal."""
        self.left, self.damage = what_stays(self.files, len(self.files.log)), None
        if self.world.random.random() < 0.5 and self.cluster.may_lose(self):
            self.cluster.lose()
            self.left, self.is_behind = Kept(Tree()), True
            self.alias += "x"
        else:
            damage.undo(self.left.synced)
        self._end()
        self.world.clock.callLater(self.world.random.random(), self.start)

    # Faults:

    def start(self) -> None:
        # If no server can be copied, all that is missing must still be in the shared log; otherwise try again later.
        by_hand = self.is_behind and not self.cluster.fills_itself
        if by_hand and not self._fill() and self.certain_mark() < self.cluster.log.left():
            self.world.clock.callLater(1.0, self.start)
            return
        self.is_behind = False
        super().start()

    def _fill(self) -> bool:
        """Copy the durable part of another server's journal; return False if no other server has more than this one."""
        others = [other for other in self.cluster.members if other is not self and other.open and not other.host.frozen]
        ours = self.certain_mark()
        others = [other for other in others if scan.read_mark(other.files.directory) > ours]
        if not others:
            return False
        leading = [other for other in others if other.leads]
        other = self.world.random.choice(leading if leading and self.world.random.random() < 0.7 else others)
        self.left = Kept(Tree.of(copy_journal(other.files.directory, other.durable_end())))
        self.cluster.fills += 1
        self.world.note(f"{self.name} is filled from {other.name}, up to {self.certain_mark()}")
        return True

    def _copy(self, name: str, directory: Path, files: Files, identity: bytes, stopping: Event) -> int:
        """Copy the journal that the server *name* offers, as a starting server does; return the copied length."""
        other = next(each for each in self.cluster.members if each.name == name)
        if other.host.dead:
            raise JournalUnreachable(f"{name} is down")
        with patch.object(Files, "identity", RecordingFiles.identity), Replica(directory, files) as replica:
            source = place(str(other.files.directory))
            check_identity(source, identity)
            Backup(source, replica, vouches=False).run()
        self.cluster.fills += 1
        self.world.note(f"{self.name} fills itself from {name}, up to {replica.position}")
        return replica.position

    def _hurt(self, directory: Path) -> None:
        super()._hurt(directory)
        damage = self.damage
        if damage is not None and damage.matters:  # bytes beyond the mark are set aside at the start, damaged or not
            position = int(damage.name.removesuffix(scan.SUFFIX), 16) + damage.offset
            damage.matters = position < self.certain_mark()

    def lose(self) -> None:
        """Lose the machine with its disk, and replace it by a new machine with another name."""
        self.world.note(f"{self.name} loses its disk")
        self.cluster.lose()
        self.cluster.wipes += 1
        self.crash()
        self.left = Kept(Tree())
        self.damage, self.to_be_damaged = None, False
        self.alias += "x"

    def freeze(self, seconds: float) -> None:
        """Stop the process for *seconds*, as SIGSTOP does."""
        if self.host.dead or self.host.frozen:
            return
        self.cluster.freezes += 1
        self.world.note(f"{self.name} is frozen for {seconds:.1f} s")
        self.host.freeze()
        self.world.clock.callLater(seconds, self._thaw, self.host)

    def _thaw(self, host: Any) -> None:
        if host.frozen:
            self.world.note(f"{self.name} continues")
            self.thawed = self.world.clock.seconds()
            host.go_on()

    def thaw(self) -> None:
        self._thaw(self.host)

    def restart(self) -> None:
        if self.up and not self.host.frozen and not self.is_ending:
            self.is_ending = True
            self._stop()

    def break_disk(self, fault: int, after: int) -> None:
        """Let a call of the disk fail with *fault* after *after* further calls."""
        if not self.host.dead:
            self.faulted = True
            self.cluster.faults += 1
            self.world.note(f"the disk of {self.name} is about to fail: {fault}, after {after} calls")
            self.files.break_soon(fault, after)

    # Rules:

    @property
    def role(self) -> Any:
        return self.journal.gate.cluster.role if self.open and self.journal.gate.cluster.running else None

    @property
    def leads(self) -> bool:
        return self.role is not None and self.role.state is State.LEADER

    def durable_end(self) -> int:
        """Return the position up to which the journal may be copied."""
        return scan.read_mark(self.files.directory)

    def certain_mark(self) -> int:
        """Return the durable mark that a start would find after any power cut."""
        return mark_of(self.left.synced) if not self.lives or self.host.dead else self.files.certain_mark

    def check(self) -> None:
        if self.failures:
            raise Violation(f"{self.name} failed: {type(self.failures[0]).__name__}: {self.failures[0]}")
        if not self.open:
            return
        self._check_bytes()
        self._check_answers()

    def _check_bytes(self) -> None:
        """Compare the bytes that were released since the last call with the bytes of the shared log."""
        mark, truth = self.journal.writer.marked, self.cluster.log.truth
        if mark <= self.mark:
            return
        if mark > len(truth):
            raise Violation(f"{self.name} has released up to {mark}, but the shared log ends at {len(truth)}")
        found = bytes_between(self.files.directory, self.mark, mark)
        if found != truth[self.mark : mark]:
            raise Violation(f"{self.name} differs from the shared log between {self.mark} and {mark}")
        self.mark = mark

    def _check_answers(self) -> None:
        """Check that a leader does not accept messages for long without an answer of the shared log (rule 8)."""
        now = self.world.clock.seconds()
        waits = self.leads and self.role.pending and not self.host.frozen
        self.pending_since = (self.pending_since or now) if waits else None
        if self.pending_since is None or self.journal.state is not JournalState.WRITABLE or self.is_ending:
            return
        silent = now - max(self.journal.gate.cluster.log.answered, self.thawed, self.pending_since)
        if silent > UNANSWERED:
            raise Violation(f"{self.name} accepts messages although the shared log has not answered for {silent:.1f} s")
