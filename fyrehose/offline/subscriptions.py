"""Read all subscriptions of a journal from its files: those to streams, and those of programs that read files.

in: a directory      out: one object for each subscription, as a running server describes it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fyrehose.broker.state_stream import replay
from fyrehose.journal.subscriptions import registered
from fyrehose.offline.dump import batches
from fyrehose.offline.view import look
from fyrehose.patterns import Pattern
from fyrehose.records import Run
from fyrehose.subscriptions.progress import FINAL, SOURCE, STREAM, SavedSubscription, SavedSubscriptions, StreamProgress

_NONE = StreamProgress()


def subscriptions(
    directory: Path, progress: Callable[[int, int], object] = lambda done, total: None
) -> list[dict[str, object]]:
    """Return the subscriptions as objects for JSON, with those keys of ``GET /subscriptions`` that the files tell.

    :param progress: called with the number of bytes that were read, and their total
    :raises JournalError: there is no journal
    :raises JournalCorrupt: the journal is damaged
    """
    view = look(directory)
    ends: dict[str, int] = {}
    own: list[Run] = []
    for batch in batches(directory):
        for run in batch.runs():
            ends[run.stream] = run.last_seq
            if run.stream == STREAM:
                own.append(run)
        progress(batch.header.end - view.start, view.mark - view.start)

    def read(stream: str, start: int, size: int) -> tuple[Run, ...]:
        return tuple(run.slice(max(0, start - run.first_seq), len(run)) for run in own if run.last_seq >= start)

    found = SavedSubscriptions()
    replay(found, read, (own[0].first_seq, own[-1].last_seq) if own else (1, 0), STREAM, SOURCE)
    files = [
        {"name": each.name, "kind": "files", "behind_bytes": max(0, view.mark - each.position), "active": each.time}
        for each in registered(directory)
    ]
    return [*(_described(name, saved, ends) for name, saved in found.entries.items()), *files]


def _described(name: str, saved: SavedSubscription, ends: Mapping[str, int]) -> dict[str, object]:
    options = saved.options
    streams = [options.stream]
    if options.pattern:
        pattern = Pattern(options.stream)
        streams = [each for each in ends if options.takes(pattern, each)]
    floors = {each: saved.streams.get(each, _NONE).final.floor for each in streams}
    place = {"position": floors[options.stream]} if options.kind == "stream" else {"streams": len(streams)}
    if options.shared:
        counts = {how: sum(each.counts[how] for each in saved.streams.values()) for how in FINAL}
        place |= {f"{how}_total": count for how, count in counts.items()} | {"paused": saved.paused}
    lag = sum(max(0, ends.get(each, 0) - floor) for each, floor in floors.items())
    return {"name": name, "stream": options.stream, "kind": options.kind, **place, "lag": lag, "active": saved.time}
