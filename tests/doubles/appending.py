"""Append runs to a journal without a broker, for tests of journals and of programs that read their files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from fyrehose.journal.commit import DEFERREDS
from fyrehose.records import Publish, Run, room_of


def append_runs(journal: Any, runs: Sequence[Run], first_seqs: Sequence[int]) -> Deferred[None]:
    """Submit copies of *runs* to the writable *journal*, each numbered from its number in *first_seqs* on.

    :return: fires when the whole batch is durable; fails as the publish fails
    """
    numbered = [run.numbered(first, 0) for run, first in zip(runs, first_seqs, strict=True)]
    done: Deferred[None] = Deferred()
    journal.submit(Publish(numbered, sum(map(room_of, runs)), DEFERREDS, done))
    return done
