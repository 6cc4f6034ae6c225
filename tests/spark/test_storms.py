"""Each record is archived once while an object store loses answers, fails or is slow."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars
import pytest

from fyrehose.errors import JournalLocked, JournalUnreachable
from fyrehose.spark.jobs.archive import archive
from tests.doubles.storeproxy import StoreProxy, store_proxy

Opener = Callable[..., Any]


@pytest.fixture
def proxy(object_store: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """A proxy before the S3 server, which everything in this test goes through."""
    with store_proxy(object_store, tmp_path) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        yield made


def stored(lake: str) -> list[tuple[str, int, bytes]]:
    """Read the lake by a reader that is not ours."""
    return sorted(polars.scan_delta(lake).select("stream", "seq", "payload").collect().iter_rows())


def entry(lake: str) -> str:
    """Return the bodies of the requests that commit to a lake."""
    return f"PUT /{lake.removeprefix('s3://')}/_delta_log/0"


def test_commit_whose_answer_was_lost_has_succeeded(written: Opener, bucket: str, proxy: StoreProxy) -> None:
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(10)
    archive(None, str(journal.directory), lake)
    for _ in range(2):
        journal.fill(10)
        before = proxy.fates["lose"]
        proxy.set(only=entry(lake), most=1, lose=1.0)
        assert archive(None, str(journal.directory), lake).rounds == 1
        assert proxy.fates["lose"] == before + 1
    assert journal.faults(stored(lake)) == []


@pytest.mark.parametrize("monitor", [None, lambda state: None])
def test_error_names_a_rival_archive_that_committed_first(written: Opener, tmp_path: Path, monitor: Any) -> None:
    """As an archive on another machine, which no lock keeps away from a lake in an object store."""
    journal, lake = written(), str(tmp_path / "lake")
    journal.fill(10)
    place = str(journal.directory)
    archive(None, place, lake)
    journal.fill(10)

    def let_rival_commit(done: Any, view: Any) -> None:
        shutil.rmtree(tmp_path / "lake" / "_locks")
        archive(None, place, lake)

    with pytest.raises(JournalLocked, match="another archive of this journal has committed"):
        archive(None, place, lake, progress=let_rival_commit, monitor=monitor)
    assert journal.faults(stored(lake)) == []


def test_archive_with_follow_continues_after_failures_of_the_store(
    written: Opener, bucket: str, proxy: StoreProxy, caplog: pytest.LogCaptureFixture, ladder: Callable[[int, int], int]
) -> None:
    """503 and resets until the archive says so, and a second more in ``make test``, a minute in ``make torture``."""
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(10)
    told: list[int] = []
    bad = {"refuse": 0.5, "reset": 0.5}

    class Ending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # The client of the store repeats requests itself, so only now has the archive noticed.
            proxy.set(until=time.time() + ladder(1, 60), **bad)

    def fail(done: Any, view: Any) -> None:
        if done.rounds == 1 and 1 not in told:
            journal.fill(10)
            proxy.set(until=time.time() + 100, **bad)
        told.append(done.rounds)

    ending = Ending(logging.WARNING)
    logging.getLogger("fyrehose").addHandler(ending)
    try:
        with caplog.at_level(logging.INFO, "fyrehose"):
            archive(
                None,
                str(journal.directory),
                lake,
                follow=True,
                every=0.01,
                progress=fail,
                stop=lambda: told[-1] >= 2,
            )
    finally:
        logging.getLogger("fyrehose").removeHandler(ending)
    assert journal.faults(stored(lake)) == []
    assert proxy.fates["refuse"]
    assert proxy.fates["reset"]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1, said
    assert "trying again" in said[0]


def test_archive_without_follow_ends_with_an_error_of_one_line(written: Opener, bucket: str, proxy: StoreProxy) -> None:
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(10)
    archive(None, str(journal.directory), lake)
    journal.fill(1)
    proxy.set(only="PUT", refuse=1.0)
    with pytest.raises(JournalUnreachable, match=r"the object store of .* failed") as raised:
        archive(None, str(journal.directory), lake)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_record_is_archived_once_while_the_store_fails_at_random(
    written: Opener, bucket: str, proxy: StoreProxy, ladder: Callable[[int, int], int]
) -> None:
    """Six rounds in ``make test``, 100 in ``make torture``; more until the store has lost an answer."""
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(5)
    archive(None, str(journal.directory), lake)
    proxy.set(lose=0.05, refuse=0.05, reset=0.05, delay=0.05)
    told: list[int] = []

    def write(done: Any, view: Any) -> None:
        told.append(done.rounds)
        journal.fill(2)

    wanted = ladder(6, 100)
    place = str(journal.directory)

    def ended() -> bool:
        return told[-1] >= wanted and proxy.fates["lose"] > 0

    archive(None, place, lake, follow=True, every=0.01, progress=write, stop=ended)
    proxy.set()
    archive(None, place, lake)
    assert journal.faults(stored(lake)) == []
    assert proxy.fates["lose"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_record_is_archived_once_by_rivals_while_the_store_fails(
    written: Opener, bucket: str, proxy: StoreProxy, ladder: Callable[[int, int], int]
) -> None:
    """Four rivals in ``make test``, 100 in ``make torture``: each commits after the other archive has begun."""
    journal, lake = written(), f"{bucket}/lake"
    journal.fill(5)
    place = str(journal.directory)
    archive(None, place, lake)
    proxy.set(lose=0.05, refuse=0.05, reset=0.05, delay=0.05)

    def catch_up(begun: Callable[[], object] = lambda: None) -> None:
        positions: list[int] = []

        def note(done: Any, view: Any) -> None:
            if not positions:
                begun()
            positions.append(done.position)

        mark = journal.place.view().mark
        archive(None, place, lake, follow=True, every=0.01, progress=note, stop=lambda: positions[-1] >= mark)

    for _ in range(ladder(4, 100)):
        journal.fill(2)
        with pytest.raises(JournalLocked, match="another archive of this journal has committed"):
            catch_up(catch_up)
    proxy.set()
    assert journal.faults(stored(lake)) == []
