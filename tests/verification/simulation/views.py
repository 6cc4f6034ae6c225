"""The history of a cluster: one truth, and the view of it that each server has.

A record that any server has released belongs to the truth from then on; in every life, every server must have the same
records, up to the last one that it has.
"""

from __future__ import annotations

from typing import Any

import attrs
from history import History

from fyrehose.records import Run


@attrs.define(eq=False)
class View:
    """The open journal of one server.

    :ivar seen: the last number of each stream that was compared with the truth
    """

    name: str
    journal: Any
    disk: Any
    seen: dict[str, int] = attrs.field(factory=dict)


class ClusterHistory(History):
    """What any server of a cluster promised to clients, in ``batch`` mode and without retention."""

    def __init__(self) -> None:
        super().__init__()
        self.views: dict[str, View] = {}

    def attach(self, name: str, journal: Any, disk: Any) -> None:
        self.views[name] = View(name, journal, disk)

    def detach(self, name: str) -> None:
        self.views.pop(name, None)

    def look(self) -> None:
        """Record what became durable on any server since the last call."""
        for view in self.views.values():
            for stream, end in view.journal.ends().items():
                known = view.seen.get(stream, 0)
                if known < end:
                    self._compare(view, stream, known, end)
                    self._check_durable(view, stream, known, end)

    def _compare(self, view: View, stream: str, known: int, end: int) -> None:
        truth = self.truth.setdefault(stream, [])
        while known < end:
            runs = view.journal.read(stream, known + 1, 1 << 20)
            if not runs:
                self.wrong(f"{view.name}: {stream} ends at {end}, but no record follows {known}")
            for run in runs:
                if run.first_seq != known + 1:
                    self.wrong(f"{view.name}: {stream} {run.first_seq} follows {known}")
                self._take_run(view, truth, run)
                known = run.last_seq
        view.seen[stream] = known

    def _take_run(self, view: View, truth: list[bytes | None], run: Run) -> None:
        if run.first_seq == len(truth) + 1:
            self._store(run.stream, run)
            return
        for seq, payload in enumerate(map(bytes, run.payloads()), run.first_seq):
            if seq > len(truth):
                self._store(run.stream, run.slice(seq - run.first_seq, len(run)))
                return
            if truth[seq - 1] != payload:
                known = truth[seq - 1]
                shown = None if known is None else known[:40]
                self.wrong(f"{view.name}: {run.stream} {seq} is {payload[:40]!r}, and elsewhere it is {shown!r}")

    def _check_durable(self, view: View, stream: str, known: int, end: int) -> None:
        certain = view.disk.ends().get(stream, 0)
        if certain < end:
            self.wrong(f"{view.name}: {stream} is durable up to {end} for the journal, but synced only up to {certain}")
        self.checked += end - known

    def note_deleted(self) -> None:
        """Do nothing: clusters are simulated without retention."""

    def missing(self, stream: str, first: int, last: int) -> bool:
        """Return False unless the range is empty: a cluster loses no records."""
        self.look()
        return first > last

    def recovered(self) -> None:
        """Compare the journal of a server that has started with the truth."""
        self.look()
