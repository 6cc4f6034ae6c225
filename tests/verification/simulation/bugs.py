"""Bugs that are put into the running code, one at a time; simulations must notice each of them.

The bugs of shared subscriptions are those of tests/verification/consumers/tables.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
from twisted.internet.defer import succeed

from fyrehose.broker.broker import Broker
from fyrehose.journal import format as fmt
from fyrehose.journal import keeper, quarantine, retention
from fyrehose.journal.clock import RecordClock
from fyrehose.journal.files import Files
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.upkeep import Upkeep
from fyrehose.journal.writer import Writer
from fyrehose.kernels.pure.lumberjack import FINGERPRINT
from fyrehose.net.turns import SteppedWork
from fyrehose.protocols.backbone import session as backbone_session
from fyrehose.protocols.backbone import subscribers
from fyrehose.protocols.backbone.ranges import Ranges
from fyrehose.protocols.backbone.repair import Repair
from fyrehose.protocols.backbone.server import BackboneProtocol
from fyrehose.protocols.eventbus.client_session import Confirmations, EventBusClientSession
from fyrehose.protocols.eventbus.server import SnapshotProtocol
from fyrehose.protocols.eventbus.session import Requested
from fyrehose.protocols.figg.session import FiggServerSession
from fyrehose.protocols.figg.window import PublishWindow
from fyrehose.protocols.lumberjack.client import _Connection as LumberjackConnection
from fyrehose.protocols.lumberjack.ledger import Fingerprints
from fyrehose.protocols.lumberjack.resent import Repetitions, Sender
from fyrehose.protocols.lumberjack.windows import Windows as LumberjackWindows
from fyrehose.protocols.relink.channels import SendChannel
from fyrehose.protocols.relink.client import Transaction
from fyrehose.protocols.relink.endpoints import Publishing
from fyrehose.protocols.relink.events import Decided
from fyrehose.protocols.relink.frames import Op
from fyrehose.protocols.relink.registry import Registry
from fyrehose.protocols.relink.server import RelinkProtocol
from fyrehose.protocols.syslog.session import SyslogServerSession
from fyrehose.records import Run
from fyrehose.subscriptions.lane import Lane
from fyrehose.subscriptions.pool import LeasePool
from fyrehose.subscriptions.table import SubscriptionTable
from tests.doubles.disk import RecordingFiles

sys.path.insert(0, str(Path(__file__).parents[1] / "consumers"))

import tables

_sync, _check, _expired = RecordingFiles.sync, fmt.BatchHeader.check, retention.expired
_subscribe, _submit, _begin_write = Broker.subscribe_as, FileJournal.submit, Registry.begin_write
_send_acks, _answer = FiggServerSession.send_acks, SyslogServerSession.acknowledge
_due, _replay = Repair.due, BackboneProtocol._replay
_acks, _lost = LumberjackWindows.acks, LumberjackConnection.connectionLost
_disconnected = Repetitions.disconnected
_end, _subscribe_after = Requested.end, SnapshotProtocol.subscribe_after
_connected = EventBusClientSession.connected
_reserve, _open, _delete = Writer._reserve, Writer.open, retention.Deletion.work
_store, _replace, _start_clock = Files.store, quarantine._replace, RecordClock.start
_write, _decided = RelinkProtocol.write, Publishing.decided
_append = SubscriptionTable.append
_unread, _take_steps = SubscriptionTable.unread, SteppedWork.take_turn


def _skips_every(nth: int) -> Any:
    """Return a `sync` method that does nothing at each *nth* call, counted over all simulations."""
    calls = count(1)

    def sync(self: RecordingFiles, fd: int) -> None:
        if next(calls) % nth:
            _sync(self, fd)

    return sync


def _checks_small_bodies(self: fmt.BatchHeader, body: Any) -> None:
    if len(body) <= 64 << 10:
        _check(self, body)


def _reserves_in_memory(self: Writer, batches: Any) -> None:
    reserved = self.streams.reserved
    short = {run.stream: run for runs in batches for run in runs if run.last_seq > reserved.get(run.stream, 0)}
    reserved.update((stream, run.last_seq + 40) for stream, run in short.items())


def _reserves_without_a_sync(self: Writer, batches: Any) -> None:
    with patch.object(Writer, "sync", lambda writer: 0):
        _reserve(self, batches)


def _goes_on_without_a_gap(self: Writer, time: int) -> None:
    gaps, self.recovered.gaps = self.recovered.gaps, []
    _open(self, time)
    self.streams.skip(gaps)


def _notes_the_beginning_only(self: Writer, begin: int) -> None:
    self._begin = begin
    self._write_mark()


def _deletes_the_newest_first(self: retention.Deletion, keep_from: Any) -> None:
    self.segments.reverse()
    _delete(self, keep_from)


def _deletes_before_it_notes(self: retention.Deletion, keep_from: Any) -> None:
    begins: list[int] = []
    _delete(self, begins.append)
    for begin in begins:
        keep_from(begin)


def _one_segment_too_many(store: Any, *more: Any) -> int:
    expired = _expired(store, *more)
    return expired + (0 < expired < len(store.sealed))


def _believes_the_clock(self: RecordClock, wall: int, now: int) -> int:
    return wall


def _believes_the_clock_at_a_start(self: RecordClock, last: int) -> int:
    return _start_clock(self, 0)


def _stores_without_a_sync(self: Files, path: Any, data: Any) -> None:
    with patch.object(type(self), "sync", lambda files, fd: None):
        _store(self, path, data)


def _replaces_without_keeping(damage: Any, survey: Any, files: Any) -> str:
    with patch.object(type(files), "store", lambda *_: None):
        return _replace(damage, survey, files)


class _Nobody:
    """An owner of publishes that ignores the result, because a bug has already given it to the real owner."""

    def settle(self, items: Any) -> None:
        """Do nothing."""


def _told_at_once(self: FileJournal, publish: Any) -> None:
    owner, publish.owner = publish.owner, _Nobody()
    _submit(self, publish)
    owner.settle([publish])


def _one_too_late(self: Broker, owner: Any, stream: str, after: int | None, sink: Any) -> Any:
    return _subscribe(self, owner, stream, after if after is None else after + 1, sink)


def _asks_for_one_less(self: Repair, now: float, most: int) -> Any:
    return [(first + 1, last) for first, last in _due(self, now, most) if first < last]


def _replays_one_less(self: BackboneProtocol, destination: Any, client: Any, ranges: Ranges, now: float) -> Any:
    less = Ranges((first, last - 1) for first, last in ranges if first < last)
    size, _ = _replay(self, destination, client, less, now) if less else (0, 0)
    return size, ranges[-1][1]


def _large_steps(self: SteppedWork) -> int:
    return _take_steps(self) * 8192


def _acknowledges_what_is_received(self: LumberjackWindows) -> Any:
    for window in takewhile(lambda each: each.finished and each.sealed, self.unacknowledged):
        window.pending = 0
    return _acks(self)


def _acknowledges_one_more(self: LumberjackWindows) -> Any:
    return [attrs.evolve(ack, number=ack.number + 1) for ack in _acks(self)]


def _forgets_what_was_sent(self: LumberjackConnection, *reason: Any) -> None:
    self.sent.clear()
    _lost(self, *reason)


def _forgets_a_connection(self: Repetitions, sender: Sender, received: int) -> None:
    for stretch in sender.recent:
        self.forget(stretch)
    sender.recent.clear()
    _disconnected(self, sender, received)


def _hashes_bytes(self: Fingerprints, run: Run) -> bytes:
    return b"".join(blake2b(bytes(payload), digest_size=FINGERPRINT).digest() for payload in run.payloads())


def _ends_ahead(self: Requested, sequence: int) -> bytes:
    return _end(self, sequence + 1)


def _skips_the_first(self: SnapshotProtocol, after: int) -> None:
    _subscribe_after(self, after + 1)


def _asks_by_the_same_connection(self: EventBusClientSession, now: float) -> None:
    self._now = now
    self._request_sync()


def _asks_only_once(self: EventBusClientSession, now: float) -> None:
    if self.position is None or not self._highest:
        _connected(self, now)
    else:
        self._syncing = False


def _settles_at_once(self: RelinkProtocol, runs: Any, staged: Any, refused: Any = None) -> None:
    assert self.entry is not None
    self._settle_staged(self.entry, staged)
    _write(self, runs, staged, refused)


def _commits_everything(self: Publishing, event: Decided) -> None:
    _decided(self, attrs.evolve(event, commit=True))


def _messages_alone(self: Registry, entry: Any, channels: Any) -> Any:
    return _begin_write(self, entry, ())


def _decided_too_late(self: Any) -> None:
    link = self._link
    self._end()
    same = link is not None and link is self._client.link
    if self.count and same and not link.over and link.sending[self.channel].undecided:
        link.decide(self.channel, Op.ROLLBACK)
        self._client.flush_soon()


def _publishes_results_apart(self: Any, shared: Any, draft: Any, runs: Any = (), publish: Any = None) -> Any:
    if runs:
        publish(runs, []).addErrback(lambda failure: None)
    return _append(self, shared, draft)


def _settles_before_it_is_durable(self: Any, shared: Any, draft: Any, *more: Any) -> Any:
    _append(self, shared, draft, *more).addErrback(lambda failure: None)
    return succeed(None)


def _keeps_its_own_state_alone(self: SubscriptionTable) -> Any:
    return [each for each in _unread(self) if each.pinned]


def _by_attribute(patched: Any) -> Mapping[tuple[Any, str], Any]:
    return {patched[:2]: patched[2]} if isinstance(patched, tuple) else patched


@attrs.frozen
class Bug:
    """A bug, and the simulation that has to notice it.

    :ivar patched: the replacements of attributes, by owner and name; for a single one: (owner, name, replacement)
    :ivar servers: how many servers its cluster has; 0 for one server alone
    :ivar steps: how many steps each simulation has; None if its seed decides
    """

    protocol: str
    patched: Mapping[tuple[Any, str], Any] = attrs.field(converter=_by_attribute)
    servers: int = 0
    steps: int | None = None


def _table(rule: str, steps: int | None = None) -> Bug:
    return Bug("workers", tables.MISSING[rule](), steps=steps)


BUGS = {
    "a sync does nothing": Bug("figg", (RecordingFiles, "sync", lambda files, fd: None)),
    "every 1,000th sync does nothing": Bug("figg", (RecordingFiles, "sync", _skips_every(1_000))),
    # About twelve in 2,000 simulations of this length meet the bug; syncs of the journals of Relink's clients count,
    # too.
    "every 10,000th sync does nothing": Bug("relink", (RecordingFiles, "sync", _skips_every(10_000)), steps=100),
    "bodies over 64 KiB are not checked": Bug("figg", (fmt.BatchHeader, "check", _checks_small_bodies)),
    "numbers are not reserved on disk": Bug("lumberjack", (Writer, "_reserve", _reserves_in_memory)),
    "a reservation of numbers is not synced": Bug("lumberjack", (Writer, "_reserve", _reserves_without_a_sync)),
    "a gap is not written": Bug("lumberjack", (Writer, "open", _goes_on_without_a_gap)),
    "interval: nothing is synced later": Bug("figg", (Upkeep, "_sync", lambda upkeep: None)),
    "clock: a wrong one is believed at a start": Bug("figg", (RecordClock, "start", _believes_the_clock_at_a_start)),
    "clock: a large step is believed": Bug("figg", (RecordClock, "_follow", _believes_the_clock)),
    "retention: where the log begins is not synced": Bug(
        "lumberjack", (Writer, "keep_from", _notes_the_beginning_only)
    ),
    "retention: deletes before it notes that": Bug(
        "lumberjack", (retention.Deletion, "work", _deletes_before_it_notes)
    ),
    "retention: deletes the newest first": Bug("lumberjack", (retention.Deletion, "work", _deletes_the_newest_first)),
    "retention: deletes a segment too many": Bug("lumberjack", (keeper, "expired", _one_segment_too_many)),
    "quarantine: what it sets aside is not synced": Bug("figg", (Files, "store", _stores_without_a_sync)),
    "quarantine: nothing is set aside": Bug("figg", (quarantine, "_replace", _replaces_without_keeping)),
    "names are not synced": Bug("mixture", (RecordingFiles, "sync_directory", lambda files, directory: None)),
    "all: a subscription begins one too late": Bug("mixture", (Broker, "subscribe_as", _one_too_late)),
    "figg: acknowledged before it is durable": Bug("figg", (FileJournal, "submit", _told_at_once)),
    "figg: acknowledged one too many": Bug(
        "figg",
        (
            FiggServerSession,
            "send_acks",
            lambda session, numbers: _send_acks(session, [number + 1 for number in numbers]),
        ),
    ),
    "figg: nothing is sent again": Bug("figg", (PublishWindow, "to_resend", lambda window: [])),
    "syslog: answered before it is durable": Bug("syslog", (FileJournal, "submit", _told_at_once)),
    "syslog: answers one too many": Bug(
        "syslog",
        (
            SyslogServerSession,
            "acknowledge",
            lambda session, numbers: _answer(session, [number + 1 for number in numbers]),
        ),
    ),
    "server: a periodic check handles 8 MiB in one turn": Bug("workers", (SteppedWork, "take_turn", _large_steps)),
    "backbone: nothing is repaired": Bug("backbone", (Repair, "due", lambda repair, now, most: [])),
    "backbone: a repair asks for one less": Bug("backbone", (Repair, "due", _asks_for_one_less)),
    "backbone: a repair sends one less": Bug("backbone", (BackboneProtocol, "_replay", _replays_one_less)),
    "backbone: nobody is trusted": Bug("backbone", (backbone_session, "in_networks", lambda host, networks: False)),
    "backbone: the silent are kept": Bug("backbone", (subscribers, "ALIVE", 6.0)),
    "lumberjack: acknowledged when received": Bug(
        "lumberjack", (LumberjackWindows, "acks", _acknowledges_what_is_received)
    ),
    "lumberjack: acknowledged one too many": Bug("lumberjack", (LumberjackWindows, "acks", _acknowledges_one_more)),
    "lumberjack: nothing is sent again": Bug(
        "lumberjack", (LumberjackConnection, "connectionLost", _forgets_what_was_sent)
    ),
    "lumberjack: the end of the log is not searched": Bug(
        "beats", (Repetitions, "recover", lambda repetitions, run, network, newer: None)
    ),
    "lumberjack: a lost connection is not searched": Bug("beats", (Repetitions, "disconnected", _forgets_a_connection)),
    "lumberjack: the order of members counts": Bug("beats", (Fingerprints, "of", _hashes_bytes)),
    "eventbus: the end is ahead of the snapshot": Bug("eventbus", (Requested, "end", _ends_ahead)),
    "eventbus: a snapshot lacks its first": Bug("eventbus", (SnapshotProtocol, "subscribe_after", _skips_the_first)),
    "eventbus: what came meanwhile is not held": Bug(
        "eventbus", (EventBusClientSession, "_hold", lambda session, event: None)
    ),
    "eventbus: a client asks only once": Bug("eventbus", (EventBusClientSession, "connected", _asks_only_once)),
    "eventbus: a late answer is taken for the next": Bug(
        "eventbus", (EventBusClientSession, "connected", _asks_by_the_same_connection)
    ),
    "eventbus: nothing is sent again": Bug("eventbus", (Confirmations, "resend", lambda confirmations, now: ([], []))),
    "relink: acknowledged before it is durable": Bug("relink", (RelinkProtocol, "write", _settles_at_once)),
    "relink: a rollback counts": Bug("relink", (Publishing, "decided", _commits_everything)),
    "relink: a link forgets what it had": Bug("relink", (Registry, "begin_write", _messages_alone)),
    "relink: decisions are not sent again": Bug("relink", (SendChannel, "resend_decisions", lambda channel: iter(()))),
    "relink: the next transaction begins too early": Bug("relink", (Transaction, "rollback", _decided_too_late)),
    "workers: results are not in the commit of their jobs": Bug(
        "workers", (SubscriptionTable, "append", _publishes_results_apart)
    ),
    "workers: settled before it is durable": Bug(
        "workers", (SubscriptionTable, "append", _settles_before_it_is_durable)
    ),
    "workers: what is being settled is settled again": _table("appended-counts", 60),
    "workers: a start does not wait for earlier workers": _table("grace"),
    "workers: leased beyond what is noted": Bug(
        "workers", (Lane, "durable_reach", property(lambda lane: 1 << 40, lambda lane, seq: None))
    ),
    "workers: any token counts": _table("token", 60),
    "workers: keys have no order": Bug("workers", (Lane, "_is_first", lambda lane, seq: True)),
    "workers: the limit is not kept": _table("limit"),
    "workers: the window is not kept": _table("window"),
    "workers: the share of a worker is not kept": _table("share-of-a-worker"),
    "workers: a lost answer is not repeated": Bug("workers", (LeasePool, "_repeated", lambda pool, consumer: [])),
    "workers: retention does not wait for them": Bug(
        "workers", (SubscriptionTable, "unread", _keeps_its_own_state_alone)
    ),
    "workers: what retention has deleted does not expire": _table("retention-ends"),
    "workers: tokens of before a rewind count": _table("rewind-epoch"),
    "workers: another subscription takes the tokens of the one before": _table("name-epoch"),
    "workers: dead letters are published again twice": _table("mark", 100),
    "workers: another subscription publishes earlier dead letters": _table("name-letters", 100),
    "workers: a pattern shares its own dead letters": _table("letters-apart"),
    "workers: a pattern lacks later streams": _table("late-streams"),
    "workers: each stream has a window": _table("window-of-all"),
}


@contextmanager
def having(bug: Bug | None) -> Iterator[None]:
    """Return a context in which the running code has *bug*."""
    with ExitStack() as stack:
        if bug is not None:
            for (owner, attribute), new in bug.patched.items():
                stack.enter_context(patch.object(owner, attribute, new))
        yield
