"""Create the journal of a server of a cluster: a file journal with the cluster's gate, and its member."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from fyrehose.cluster.filling import Copy, Filler, in_abandoned_thread
from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.member import Member
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.shared_log import ISharedLog
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.settings import JournalSettings


def replicated(
    reactor: Any,
    directory: Path,
    settings: JournalSettings,
    *,
    replication: ReplicationSettings,
    shared_log: ISharedLog,
    on_reopen: Callable[[str], object] = lambda reason: None,
    on_removed: Callable[[str], object] = lambda reason: None,
    copy: Copy | None = None,
    in_thread: Callable[..., Deferred[int]] | None = None,
    incarnation: int | None = None,
    **options: Any,
) -> FileJournal:
    """Create a journal that takes part in a cluster while it is open.

    :param replication: the options of this server
    :param shared_log: connects the servers
    :param on_reopen: called with the reason when the journal has to be closed and opened again
    :param on_removed: called with the reason when this server is no member of the cluster
    :param copy: copies the journal of another server; None: the journal is not filled by itself
    :param in_thread: calls a function that blocks; None: in a thread of its own
    :param incarnation: a random number for this start; None: choose one
    :param options: further arguments of :class:`~fyrehose.journal.journal.FileJournal`
    """
    random = int.from_bytes(os.urandom(8), "little") if incarnation is None else incarnation
    gate = ReplicatedGate(replication.name)
    journal = FileJournal(reactor, directory, settings, gate=gate, **options)
    gate.cluster = Member(
        reactor,
        journal,
        gate,
        shared_log,
        Peers(replication, random),
        on_reopen,
        on_removed,
        can_fill=copy is not None,
    )
    if copy is not None:
        peers, in_thread = Peers(replication, random), in_thread or partial(in_abandoned_thread, reactor)
        gate.filler = Filler(reactor, directory, shared_log, peers, copy, in_thread, journal.files)
    return journal
