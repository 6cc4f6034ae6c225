"""Bugs of replication: each one removes a rule of the cluster from the running code, and a simulation has to notice.

The rules of a role are removed as in tests/verification/torture/replication.py.  The other rules are removed from the
journal, from the member that carries out a role's decisions, or from the copying of journals.
"""

from __future__ import annotations

import sys
from pathlib import Path

import member as servers
from bugs import Bug
from synced import batch_at

from fyrehose.cluster import gate, member
from fyrehose.cluster.acting import Actor
from fyrehose.cluster.entries import LogEntry, Validity
from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.errors import ReadOnly
from fyrehose.journal import scan
from fyrehose.journal.writer import Writer
from fyrehose.offline import places
from fyrehose.offline.view import Extent, View, look
from fyrehose.protocols.relink import server as relink

sys.path.insert(0, str(Path(__file__).parents[1] / "torture"))

import replication as torture

_counts = Validity.counts
_look = look
_note, _purge = Writer._write_mark, Actor._purge


def _counts_void(self: Validity, entry: LogEntry) -> bool:
    _counts(self, entry)
    self.epoch = max(self.epoch, entry.epoch)
    self.end = self.reached = entry.end
    return True


def _marks_what_is_synced(self: Writer) -> None:
    released, self.released = self.released, max(self.released, self.durable)
    _note(self)
    self.released = released


async def _purges_one_too_many(self: Actor, number: int) -> None:
    await _purge(self, number + 1)


def _looks_beyond_the_mark(directory: Path) -> View:
    view = _look(directory)
    if not view.segments:
        return view
    last = view.segments[-1]
    file = scan.path_of(directory, last.base).read_bytes()
    end = last.end
    while (found := batch_at(lambda size, offset: file[offset : offset + size], last.base, end)) is not None:
        end = found[0].end
    return View(end, (*view.segments[:-1], Extent(last.base, end)), view.identity, view.vouched)


def _role(name: str) -> Bug:
    return Bug("figg", (member, "Role", torture.ROLES[name]), 3)


BUGS = {
    "cluster, rule 1: every entry counts": Bug("figg", (Validity, "counts", _counts_void), 3),
    "cluster, rule 2: confirmed although the one before is unknown": _role("order-blind"),
    "cluster, rule 3: what was not answered is given up": _role("give-up"),
    "cluster, rule 4: takes over without having everything": _role("blind-takeover"),
    "cluster, rule 5: a deposed leader keeps its position": _role("no-step-down"),
    "cluster, rule 6: acknowledged when it is synced here": _role("ack-local"),
    "cluster, rule 6: acknowledged when the shared log has it": _role("ack-remote"),
    "cluster, rule 6: the mark on disk runs ahead": Bug("figg", (Writer, "_write_mark", _marks_what_is_synced), 3),
    "cluster, rule 6: nothing is cut at the start": Bug("figg", (gate, "cut_at_mark", lambda *_: []), 3),
    "cluster, rule 8: accepts messages without an answer": Bug(
        "figg", (ReplicatedGate, "suspend", lambda gate, reason: False), 3
    ),
    "cluster, rule 9: trims alone": _role("trim-alone"),
    "cluster, rule 9: trims one entry too many": Bug("figg", (Actor, "_purge", _purges_one_too_many), 3),
    "cluster, rule 10: copies what is not confirmed": Bug(
        "figg", (servers.Member, "durable_end", lambda server: server.journal.writer.position), 3
    ),
    "cluster, rule 10: fills itself with what is not confirmed": Bug(
        "figg", (places, "look", _looks_beyond_the_mark), 3
    ),
    "cluster: links of servers that do not lead": Bug(
        "relink", (relink, "Unreplicated", type("Never", (ReadOnly,), {})), 3
    ),
}
