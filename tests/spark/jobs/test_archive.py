"""Archive every record once, also after kills and errors, and read the lake by table()."""

from __future__ import annotations

import subprocess
import sys
import time
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
from fyrehose.spark.counting import account_of
from fyrehose.spark.jobs.archive import archive
from fyrehose.spark.jobs.optimize import delete
from fyrehose.spark.lake import Lake

Opener = Callable[..., Any]


def brief(frame: Any) -> list[tuple[str, int, bytes]]:
    return sorted(
        (row.stream, row.seq, bytes(row.payload)) for row in frame.select("stream", "seq", "payload").collect()
    )


def stored(lake: Path, server: str | None = None) -> list[tuple[str, int, bytes]]:
    """Return what the lake has, read by delta-rs."""
    rows = DeltaTable(str(lake)).to_pyarrow_table(columns=["server", "stream", "seq", "payload"]).to_pylist()
    return sorted((row["stream"], row["seq"], row["payload"]) for row in rows if server in (None, row["server"]))


def test_counts_of_a_range_equal_those_of_its_batch_headers(written: Opener) -> None:
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
def test_every_record_is_archived_once_in_several_rounds_and_runs(spark: Any, written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    told = []
    journal.fill(100)
    done = archive(
        spark, place, lake, round_bytes=200_000, subscription="lake", progress=lambda done, view: told.append(done.rows)
    )
    assert told[0] == 0, "before the first round"
    assert done.rounds == len(told) - 1 > 1
    assert done.rows == len(journal.records)
    assert [each.position for each in subscriptions.registered(journal.directory)] == [done.position]
    assert archive(None, place, lake).rounds == 0
    assert stored(lake) == journal.rows()


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
    with monkeypatch.context() as patched:  # killed between the writing and the commit
        patched.setattr(Lake, "commit", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            archive(None, place, lake)
    assert len(list(lake.rglob("*.parquet"))) == 1
    assert stored(lake) == []
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


def test_journals_of_several_servers_are_in_one_lake(written: Opener, tmp_path: Path) -> None:
    one, other, lake = written("one"), written("other"), tmp_path / "lake"
    one.fill(30)
    other.fill(50)
    archive(None, str(one.directory), lake, server="one", round_bytes=60_000)
    archive(None, str(other.directory), lake, server="other")
    one.fill(10)
    archive(None, str(one.directory), lake)
    assert (stored(lake, "one"), stored(lake, "other")) == (one.rows(), other.rows())


def test_numbers_that_retention_deleted_can_be_declared_lost(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    journal.fill(20)
    archive(None, place, lake, server="one")
    first = len(journal.records)
    journal.fill(300)
    for segment in journal.segments[:2]:
        segment.path.unlink()
    with pytest.raises(JournalCorrupt, match="retention deleted"):
        archive(None, place, lake)
    done = archive(None, place, lake, accept_loss=True)
    assert done.rows + done.gaps + first == len(journal.records)
    lost = {(stream, n) for _, stream, a, b in Lake.at(lake).lost() for n in range(a, b + 1)}
    assert len(lost) == done.gaps > 0
    assert stored(lake) == journal.rows(lambda r: (r.stream, r.seq) not in lost)
    assert archive(None, place, lake, accept_loss=True).rounds == 0


def test_records_that_were_archived_and_then_deleted_are_not_lost(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    place = str(journal.directory)
    journal.append(Run.of("idle", [b"x"] * 3, source="test"))
    journal.fill(20)
    archive(None, place, lake)
    before = len(journal.records)
    assert delete(lake, "stream in ('idle', 's1')") > 3
    journal.fill(300)
    for segment in journal.segments[:2]:
        segment.path.unlink()
    done = archive(None, place, lake, accept_loss=True)
    lost = {(stream, n) for _, stream, a, b in Lake.at(lake).lost() for n in range(a, b + 1)}
    assert not lost & {(record.stream, record.seq) for record in journal.records[:before]}
    assert before + len(lost) + done.rows == len(journal.records)


def test_last_numbers_of_streams_are_kept_even_without_their_rows(written: Opener, tmp_path: Path) -> None:
    journal, lake = written(), tmp_path / "lake"
    for name in ("a/b", "\n", "ü" * 127, "s0"):
        journal.append(Run.of(name, [b"x"] * 2, source="test"))
    journal.fill(30)
    archive(None, str(journal.directory), lake, round_bytes=20_000)
    identity = journal.place.view().identity
    ends = {stream: end for stream, end in journal.journal.ends().items() if end}
    assert Lake.at(lake).ends(identity) == ends
    DeltaTable(str(lake)).create_checkpoint()
    assert Lake.at(lake).ends(identity) == ends
    assert Lake.at(lake).streams() == set(ends)
    delete(lake, "seq > 0")
    journal.fill(5)
    archive(None, str(journal.directory), lake)
    assert Lake.at(lake).ends(identity) == {stream: end for stream, end in journal.journal.ends().items() if end}


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


ARCHIVE = [sys.executable, "-c", "from fyrehose.cli.spark import main; main()", "archive", "--engine", "local"]


def start(journal: Any, lake: Path) -> subprocess.Popen[bytes]:
    """Return an archive in a process of its own, which has committed a round."""
    options = ["--server", journal.directory.name, "--follow", "--every", "50ms", "--round", "20K"]
    before = position(journal, lake)
    process = subprocess.Popen([*ARCHIVE, str(journal.directory), str(lake), *options], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while position(journal, lake) == before:
        assert process.poll() is None
        assert time.monotonic() < deadline
        journal.fill(1)
        time.sleep(0.05)
    return process


def position(journal: Any, lake: Path) -> int:
    progress = Lake.at(lake).progress(journal.place.view().identity)
    return 0 if progress is None else progress.position


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_archive_that_is_killed_again_and_again_has_everything_once(
    written: Opener, tmp_path: Path, ladder: Callable[[int, int], int]
) -> None:
    """Twice in ``make test``; ``make torture`` kills it more often, here and by ``spark_kill.py``."""
    journal, lake, dice = written(), tmp_path / "lake", Random(7)
    for _ in range(ladder(2, 12)):
        process = start(journal, lake)
        until = time.monotonic() + dice.uniform(0, 0.5)
        while time.monotonic() < until:
            journal.fill(2)
        process.kill()
        process.wait()
    archive(None, str(journal.directory), lake)
    assert stored(lake) == journal.rows()


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(600)
def test_two_servers_archive_into_one_lake_while_they_are_killed(
    written: Opener, tmp_path: Path, ladder: Callable[[int, int], int]
) -> None:
    """Two kills in ``make test``, 30 in ``make torture``."""
    journals, lake, dice = [written("one"), written("other")], tmp_path / "lake", Random(9)
    running = [start(journal, lake) for journal in journals]
    for _ in range(ladder(2, 30)):
        until = time.monotonic() + dice.uniform(0, 0.5)
        while time.monotonic() < until:
            for journal in journals:
                journal.fill(1)
        chosen = dice.randrange(2)
        running[chosen].kill()
        running[chosen].wait()
        running[chosen] = start(journals[chosen], lake)
    for process in running:
        process.terminate()
        assert process.wait(300) == 0
    for journal in journals:
        archive(None, str(journal.directory), lake)
        assert stored(lake, journal.directory.name) == journal.rows()
