"""Archive every record once, also after kills and errors, and read the lake by table()."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from fyrehose.errors import ConfigError, JournalCorrupt, JournalLocked, JournalUnreachable
from fyrehose.journal import subscriptions
from fyrehose.journal.files import Files
from fyrehose.offline.backup import Backup
from fyrehose.offline.branching import SKIPPED
from fyrehose.offline.mirror import Replica
from fyrehose.offline.places import Directory
from fyrehose.offline.standby import Standby, promote
from fyrehose.records import Run
from fyrehose.spark import rounds, tables
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete, optimize
from fyrehose.spark.lake import Lake
from tests.doubles.awkward import NAMES
from tests.doubles.commits import fault

Opener = Callable[..., Any]


def brief(frame: Any) -> list[tuple[str, int, bytes]]:
    return sorted(
        (row.stream, row.seq, bytes(row.payload)) for row in frame.select("stream", "seq", "payload").collect()
    )


def stored(lake: Path | str, server: str | None = None) -> list[tuple[str, int, bytes]]:
    """Return what the lake has, read by delta-rs."""
    rows = DeltaTable(str(lake)).to_pyarrow_table(columns=["server", "stream", "seq", "payload"]).to_pylist()
    return sorted((row["stream"], row["seq"], row["payload"]) for row in rows if server in (None, row["server"]))


class Archiving:
    """A journal that is archived under the name of its directory, and what the lake should have of it."""

    def __init__(self, journal: Any, lake: str) -> None:
        self.journal, self.lake, self.server = journal, lake, journal.directory.name
        self.archived, self.lost, self.deleted = (set[tuple[str, int]]() for _ in range(3))

    def archive(self, **more: Any) -> Any:
        return archive(
            None, str(self.journal.directory), self.lake, server=self.server, subscription=self.server, **more
        )

    def keys(self) -> set[tuple[str, int]]:
        """Return the records that the journal still has."""
        return {(row["stream"], row["seq"]) for row in self.journal.read(columns=("stream", "seq"))}

    def forget(self, keep: int) -> bool:
        """Delete all but some segments, as retention does; return whether a record is lost that was not archived."""
        before = self.keys()
        for segment in self.journal.segments[:-keep]:
            segment.path.unlink()
        new = before - self.keys() - self.archived
        self.lost |= new
        return bool(new)

    def check(self) -> None:
        """Check the lake after an archive that has come to the end of the journal."""
        view, lake = self.journal.place.view(), Lake.at(self.lake)
        known = {(record.stream, record.seq) for record in self.journal.records}
        self.archived = known - self.lost
        lost = {(s, n) for server, s, a, b in lake.lost() for n in range(a, b + 1) if server == self.server}
        assert lost == self.lost, "other numbers are declared lost than retention has deleted"
        there = self.archived - self.deleted
        assert stored(self.lake, self.server) == self.journal.rows(lambda r: (r.stream, r.seq) in there)
        ends = {stream: end for stream, end in self.journal.journal.ends().items() if end}
        assert lake.ends(view.identity) == ends
        assert [each.position for each in subscriptions.registered(self.journal.directory)] == [view.mark]


def test_lake_has_each_record_once_whatever_interrupts_its_archives(written: Opener, tmp_path: Path) -> None:
    """Two servers write; their archives are killed before and after commits, and come after retention now and then."""
    lake = str(tmp_path / "lake")
    servers = [Archiving(written(name, segment_size=16 << 10), lake) for name in ("one", "other")]
    dice, happened = Random(3), Counter[str]()
    for _ in range(24):
        one = dice.choice(servers)
        one.journal.fill(dice.choice((0, 5, 60, 60)), size=300)
        one.journal.append(Run.of(dice.choice(NAMES), [b"x"] * dice.randint(1, 2), source="test"))
        limits = {"round_bytes": dice.choice((5_000, 20_000, 1 << 30))}
        if dice.random() < 0.4:
            try:
                with fault(dice.randint(1, 3), dice.random() < 0.5, KeyboardInterrupt()):
                    one.archive(**limits)
            except KeyboardInterrupt:
                happened["killed"] += 1
            one.archived |= {(row[0], row[1]) for row in stored(lake, one.server)}
        if one.archived and dice.random() < 0.5 and one.forget(dice.randint(1, 3)):
            happened["lost"] += 1
            with pytest.raises(JournalCorrupt, match="retention deleted"):
                one.archive()
            limits["accept_loss"] = True
        before = one.archived | one.lost
        done = one.archive(**limits)
        one.check()
        assert one.archive(accept_loss=True).rounds == 0, "nothing is new"
        assert done.rows == len(one.archived - before)
        if dice.random() < 0.2:
            stream = dice.choice(("s0", "s1", "s2"))
            gone = {key for each in servers for key in each.archived - each.deleted if key[0] == stream}
            for each in servers:
                each.deleted |= gone & each.archived
            assert bool(delete(lake, f"stream = '{stream}'")) == bool(gone)
            happened["deleted"] += bool(gone)
        if dice.random() < 0.2:
            optimize(lake)
            DeltaTable(lake).create_checkpoint()
        for each in servers:
            if each.archived:
                each.check()
    never = {"killed", "lost", "deleted"} - happened.keys()
    assert not never, f"never happened: {never}"


@pytest.mark.slow
def test_table_has_the_lake_and_the_journal_beyond_it_once(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    journal.fill(100)
    archive(None, place, lake)
    journal.fill(20)
    assert brief(tables.table(spark, lake, place)) == journal.rows()
    assert brief(tables.table(spark, lake, place, streams=["s1"])) == journal.rows(lambda r: r.stream == "s1")
    assert brief(tables.table(spark, None, place, streams=["s1"])) == journal.rows(lambda r: r.stream == "s1")
    archive(None, place, lake)
    assert brief(tables.table(spark, lake, place)) == journal.rows()


def test_files_are_sorted_by_stream_and_number(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(100)
    done = archive(None, str(journal.directory), lake, server="web1")
    assert (done.rows, stored(lake, "web1")) == (len(journal.records), journal.rows())
    for file in Lake.at(lake).files():
        table = parquet.read_table(lake / file.path, columns=["stream", "seq"], partitioning=None).to_pylist()
        keys = [(row["stream"], row["seq"]) for row in table]
        assert keys == sorted(keys)
        assert file.path.startswith("date=2023-11-14/part-")
        assert len(keys) == file.rows


def test_records_of_each_day_are_in_its_directory(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(5)
    for _ in range(2):  # The journal does not follow a clock that steps by more than an hour.
        journal.now[0] += 3_500_000_000
        journal.fill(5)
    archive(None, str(journal.directory), lake)
    assert sorted({file.path[:15] for file in Lake.at(lake).files()}) == ["date=2023-11-14", "date=2023-11-15"]
    assert stored(lake) == journal.rows()


def test_a_round_that_fails_commits_nothing(written: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    place = str(journal.directory)
    with monkeypatch.context() as patched:
        patched.setattr(rounds, "write", lambda task: [])
        with pytest.raises(JournalCorrupt, match=r"have 0 records, and the journal has 50 .*nothing was committed"):
            archive(None, place, lake)
    assert archive(None, place, lake).rows == len(journal.records)
    assert stored(lake) == journal.rows()


def test_archive_of_another_journal_or_an_older_copy_is_refused(written: Opener, tmp_path: Path) -> None:
    one, lake = written("one"), tmp_path / "lake"
    for i in range(5):
        one.append(Run.of("s", [b"%3d" % i], source="test"))
    copy = tmp_path / "copy"
    one.close()
    copy.mkdir()
    for path in one.directory.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    for number in (1, 2):
        again = written("one")
        again.append(Run.of("s", [b"%3d" % number], source="test"))
        again.close()
    archive(None, str(one.directory), lake)
    with pytest.raises(JournalUnreachable, match="put back from an older copy"):
        archive(None, str(copy), lake, subscription="lake")
    grown = written("copy")
    for number in range(9):
        grown.append(Run.of("s", [b"%3d" % number], source="test"))
    with pytest.raises(JournalCorrupt, match="put back from another copy"):
        archive(None, str(copy), lake, subscription="lake")
    assert subscriptions.registered(copy) == []
    identity = Lake.at(lake).servers()
    with (
        Lake.at(lake).locked(bytes.fromhex(next(iter(identity)))),
        pytest.raises(JournalLocked, match="another archive"),
    ):
        archive(None, str(one.directory), lake)


def followed(source: Path, standby: Path) -> None:
    """Copy a journal into a standby."""
    with Replica(standby, Files()) as replica:
        copying = Backup(Directory(source), replica)
        Standby(copying).catch_up(copying.run)


def test_archive_continues_with_a_promoted_standby_that_has_all_that_the_lake_has(
    written: Opener, tmp_path: Path
) -> None:
    one, lake = written("one"), tmp_path / "lake"
    one.fill(20)
    archive(None, str(one.directory), lake, server="one")
    one.fill(5)
    followed(one.directory, tmp_path / "standby")
    rows = one.rows()
    one.fill(5)  # The server is lost with them.
    promote(tmp_path / "standby", Files())
    promoted = written("standby")
    promoted.next["new"] = promoted.journal.floor + 1
    promoted.append(Run.of("s1", [b"later"], source="test"), Run.of("new", [b"first"], source="test"))
    archive(None, str(promoted.directory), lake)
    assert stored(lake) == sorted(rows + promoted.rows())
    gaps = {stream: last - first for _, stream, first, last in Lake.at(lake).lost()}
    assert gaps.keys() >= {"s0", "s1", "s2"}
    assert min(gaps.values()) >= SKIPPED - 1


def test_promoted_standby_that_lacks_archived_records_is_refused(written: Opener, tmp_path: Path) -> None:
    one, lake = written("one"), tmp_path / "lake"
    one.fill(20)
    followed(one.directory, tmp_path / "standby")
    one.fill(5)
    archive(None, str(one.directory), lake, server="one")
    promote(tmp_path / "standby", Files())
    promoted, end = written("standby"), one.place.view().mark
    with pytest.raises(
        JournalUnreachable, match=r"promoted standby that lacks.*give this one a lake or output of its own"
    ):
        archive(None, str(promoted.directory), lake)
    while promoted.place.view().mark <= end:
        promoted.append(Run.of("s1", [b"x"], source="test"))
    with pytest.raises(JournalCorrupt, match="promoted standby has replaced; begin anew, with another lake"):
        archive(None, str(promoted.directory), lake)


def test_declared_losses_can_be_taken_back(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    archive(None, str(journal.directory), lake)
    journal.fill(300)
    for segment in journal.segments[:2]:
        segment.path.unlink()
    archive(None, str(journal.directory), lake, accept_loss=True)
    declared = Lake.at(lake).lost()
    streams = {stream for _, stream, _, _ in declared}
    assert len(streams) == 3
    assert Lake.at(lake).take_back("stream = 's1'") == 1
    assert {stream for _, stream, _, _ in Lake.at(lake).lost()} == streams - {"s1"}
    with pytest.raises(ConfigError, match="invalid condition 'strea = 1'"):
        Lake.at(lake).take_back("strea = 1")


@pytest.mark.slow
def test_unusual_names_and_times_are_archived_unchanged(spark: Any, written: Opener, tmp_path: Path) -> None:
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
    archive(None, str(journal.directory), lake)
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


def test_damage_stops_the_archive_without_skipping_records(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(100)
    path = journal.flip(journal.segments[1].base + 50_000)
    with pytest.raises(JournalCorrupt, match=f"{path} is damaged"):
        archive(None, str(journal.directory), lake, round_bytes=250_000)
    progress = Lake.at(lake).progress(journal.place.view().identity)
    assert progress is not None
    assert 0 < progress.position <= journal.segments[1].base + 50_000
    assert stored(lake) == journal.brief(journal.read(stop=progress.position))


def test_archive_follows_until_it_is_stopped(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(10)
    state: list[Any] = []

    def told(done: Any, view: Any) -> None:
        state[:] = [done]
        if done.rounds < 3:
            journal.fill(5)

    done = archive(
        None,
        str(journal.directory),
        lake,
        follow=True,
        every=0.01,
        subscription="lake",
        progress=told,
        stop=lambda: bool(state) and state[0].rounds >= 3,
    )
    assert done.rounds == 3
    assert stored(lake) == journal.rows()


def test_numbers_that_are_declared_lost_are_in_the_lake(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    journal.fill(20)
    journal.close()
    journal.flip(5_000)
    journal = written(quarantine=True)
    done = archive(None, str(journal.directory), lake)
    assert done.gaps == sum(last - first + 1 for _, _, first, last in Lake.at(lake).lost()) > 0
    assert done.rows == len(journal.read(skip_gaps=True))
    ends = {stream: end for stream, end in journal.journal.ends().items() if end}
    assert Lake.at(lake).ends(journal.place.view().identity) == ends, "records follow the numbers that are lost"
