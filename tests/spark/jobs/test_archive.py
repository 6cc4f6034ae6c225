"""Archiving: everything once, whatever happened in between; and the tables over what was archived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest

from fyrehose.errors import JournalCorrupt, JournalLocked
from fyrehose.journal import holds
from fyrehose.records import Run
from fyrehose.spark import tables
from fyrehose.spark.jobs import archive as module
from fyrehose.spark.jobs.archive import account_of, archive
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]


def brief(frame: Any) -> list[tuple[str, int, bytes]]:
    return sorted(
        (row.stream, row.seq, bytes(row.payload)) for row in frame.select("stream", "seq", "payload").collect()
    )


def test_an_account_is_what_the_headers_say(written: Opener) -> None:
    journal = written()
    journal.fill(200)
    view = journal.place.view()
    whole = account_of(journal.place, view, view.start, view.mark)
    assert (whole.rows, whole.gaps) == (len(journal.records), ())
    middle = journal.read(start=view.segments[1].base)
    first = account_of(journal.place, view, view.start, view.segments[1].base)
    second = account_of(journal.place, view, view.segments[1].base, view.mark)
    assert (first.rows, second.rows) == (len(journal.records) - len(middle), len(middle))
    assert first.chain == second.continued
    journal.segments[0].path.unlink()
    with pytest.raises(JournalCorrupt, match="was deleted before it was archived"):
        account_of(journal.place, view, view.start, view.mark)


@pytest.mark.slow
def test_everything_once_in_several_rounds_and_runs(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    told = []
    journal.fill(100)
    done = archive(
        spark, place, lake, round_bytes=200_000, hold="lake", progress=lambda done, view: told.append(done.rows)
    )
    assert told[0] == 0, "before the first round"
    assert done.rounds == len(told) - 1 > 1
    assert done.rows == len(journal.records)
    assert [hold.position for hold in holds.registered(journal.directory)] == [done.position]
    assert archive(spark, place, lake).rounds == 0
    # What is behind the lake comes from the journal: nothing is missing, and nothing is there twice.
    journal.fill(20)
    assert brief(tables.table(spark, lake, place)) == journal.rows()
    assert len(brief(tables.table(spark, lake))) == done.rows
    assert brief(tables.table(spark, lake, place, streams=["s1"])) == journal.rows(lambda r: r.stream == "s1")
    assert brief(tables.table(spark, None, place, streams=["s1"])) == journal.rows(lambda r: r.stream == "s1")
    archive(spark, place, lake)
    assert brief(tables.table(spark, lake)) == brief(tables.table(spark, lake, place)) == journal.rows()


@pytest.mark.slow
def test_names_and_times_that_are_odd(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    names = [
        "a/b",
        "..",
        "ü" * 127,
        "x" * 255,
        "a=b%2F*",
        "__HIVE_DEFAULT_PARTITION__",
        "2026-01-01",
        " ",
        "A",
        "a",
        "\n",
    ]
    times = [-(1 << 63), -1, 0, (1 << 63) - 1]
    for i, name in enumerate(names):
        journal.append(
            Run.of(
                name,
                [b"%d" % i, b"\xff\x00"],
                source="test",
                producer_seq=(1 << 64) - 3,
                event_times=pack("<2q", times[i % 4], 5),
                event_ids=bytes(range(32)),
            )
        )
    archive(spark, str(journal.directory), lake)
    # A name that begins with a dot is one of the server's own, which are there for who asks for them.
    assert brief(tables.table(spark, lake)) == journal.rows(lambda r: r.stream != "..")
    assert brief(tables.table(spark, lake, streams=names)) == journal.rows()
    for name in ("..", "x" * 255, "a=b%2F*"):
        assert brief(tables.table(spark, lake, str(journal.directory), streams=[name])) == journal.rows(
            lambda r, name=name: r.stream == name
        )
    micros = tables.table(spark, lake, streams=names).selectExpr("*", "unix_micros(event_time) micros")
    stored = {
        (row.stream, row.seq): (row.micros, row.producer_seq, bytes(row.event_id), str(row.date))
        for row in micros.drop("event_time").collect()
    }
    for record in journal.records:
        expected = (record.event_time, record.producer_seq - (1 << 64), record.event_id, "2023-11-14")
        assert stored[record.stream, record.seq] == expected


@pytest.mark.slow
def test_many_streams_in_files_by_date(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.append(*(Run.of(f"s{i}", [b"x"], source="test") for i in range(60)))
    archive(spark, str(journal.directory), lake, by_stream=False)
    assert len(list(lake.rglob("*.parquet"))) == 1
    assert brief(tables.table(spark, lake)) == journal.rows()
    assert brief(tables.table(spark, lake, streams=["s7"])) == [("s7", 1, b"x")]


@pytest.mark.slow
def test_a_round_that_fails_leaves_nothing(
    spark: Any, written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    place = str(journal.directory)
    with monkeypatch.context() as patched:
        patched.setattr(module, "round_files", lambda directory: iter(()))
        with pytest.raises(JournalCorrupt, match=r"has 0 records, and the journal has 50 .*nothing was committed"):
            archive(spark, place, lake)
    assert list((lake / "data").iterdir()) == []
    with monkeypatch.context() as patched:  # killed between the writing and the commit
        patched.setattr(Lake, "commit", lambda self, commit: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            archive(spark, place, lake)
    assert len(list((lake / "data").iterdir())) == 1
    assert brief(tables.table(spark, lake, place)) == journal.rows()
    done = archive(spark, place, lake)
    assert (done.removed, done.rows) == (1, len(journal.records))
    assert brief(tables.table(spark, lake)) == journal.rows()


@pytest.mark.slow
def test_a_lake_is_of_one_journal(spark: Any, written: Opener, tmp_path: Path) -> None:
    one, other, lake = written("one"), written("other"), tmp_path / "lake"
    for i in range(5):
        one.append(Run.of("s", [b"%3d" % i], source="test"))
    archive(spark, str(one.directory), lake)
    for i in range(9):
        other.append(Run.of("s", [b"%3d" % (i + 100)], source="test"))
    with pytest.raises(JournalCorrupt, match="it is another journal"):
        archive(spark, str(other.directory), lake)
    shorter = written("shorter")
    shorter.append(Run.of("s", [b"x"], source="test"))
    with pytest.raises(JournalCorrupt, match="it is another journal"):
        archive(spark, str(shorter.directory), lake, hold="lake")
    assert holds.registered(shorter.directory) == []
    holder = Lake.at(lake)
    holder.lock()
    with pytest.raises(JournalLocked):
        archive(spark, str(one.directory), lake)
    holder.unlock()


@pytest.mark.slow
def test_damage_stops_the_archive_and_nothing_is_left_out(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(100)
    path = journal.flip(journal.segments[1].base + 50_000)
    with pytest.raises(Exception, match=f"{path} is damaged"):
        archive(spark, str(journal.directory), lake, round_bytes=250_000)
    whole = Lake.at(lake).commits()
    assert whole
    assert whole[-1].end <= journal.segments[1].base + 50_000
    before = journal.place.view().segments[0]
    assert sum(commit.rows for commit in whole) == len(journal.read(stop=whole[-1].end))
    assert before.base == 0


@pytest.mark.slow
def test_it_follows_until_it_is_stopped(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(10)

    def more(done: Any, view: Any) -> None:
        if done.rounds < 3:
            journal.fill(5)

    state: list[Any] = []

    def told(done: Any, view: Any) -> None:
        state[:] = [done]
        more(done, view)

    done = archive(
        spark,
        str(journal.directory),
        lake,
        follow=True,
        every=0.01,
        hold="lake",
        progress=told,
        stop=lambda: bool(state) and state[0].rounds >= 3,
    )
    assert done.rounds == 3
    assert brief(tables.table(spark, lake)) == journal.rows()


@pytest.mark.slow
def test_numbers_that_are_declared_lost_are_in_the_log(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    journal.close()
    journal.flip(5_000)
    journal = written(quarantine=True)
    done = archive(spark, str(journal.directory), lake)
    commits = Lake.at(lake).commits()
    assert done.gaps == sum(last - first + 1 for commit in commits for _, first, last in commit.gaps) > 0
    assert done.rows == len(journal.read(skip_gaps=True))


@pytest.mark.slow
def test_json_as_variant(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake, random = written(), tmp_path / "lake", Random(1)
    payloads = [b'{"a": 1}', b"no json", b'{"a": "\xff"}', random.randbytes(9)]
    journal.append(Run.of("s", payloads, source="test", content_type="application/json"))
    journal.append(Run.of("s", [b'{"a": 2}'], source="test"))
    archive(spark, str(journal.directory), lake, variant=True)
    files = [str(path) for path in lake.rglob("*.parquet")]
    rows = spark.read.parquet(*files).selectExpr("seq", "try_variant_get(json, '$.a', 'int') a").sort("seq").collect()
    assert [row.a for row in rows] == [1, None, None, None, None]
    assert brief(tables.table(spark, lake)) == journal.rows()
