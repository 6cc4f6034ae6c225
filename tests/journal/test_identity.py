"""A journal has an identity, which every copy of it shares."""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
import pytest

from fyrehose.errors import JournalCorrupt, JournalError
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.journal.quarantine import set_aside
from fyrehose.journal.settings import durability as parse_durability
from fyrehose.journal.streams import RESERVE
from fyrehose.offline import dump
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from tests.doubles.files import FaultyFiles, flip
from tests.doubles.formats import Author

OLDER = Path(__file__).with_name("formats") / "1"


def identities(directory: Path) -> list[bytes]:
    found = []
    for segment in scan.segments(directory):
        with scan.SegmentReader(segment.path, segment.base) as reader:
            found.append(reader.header().identity)
    return found


def fill(bench, count: int = 30) -> None:
    for i in range(count):
        bench.append(b"%d" % i * 100)


def test_every_segment_has_the_identity_and_a_restart_keeps_it(open_journal) -> None:
    bench = open_journal(segment_size=4 << 10)
    fill(bench)
    bench.close()
    again = open_journal(segment_size=4 << 10)
    fill(again)
    found = identities(bench.directory)
    assert len(found) > 3
    assert len(set(found)) == 1
    assert found[0] != fmt.UNKNOWN
    assert look(bench.directory).identity == found[0]


def test_two_journals_have_different_identities(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        author = Author(tmp_path / name)
        author.open()
        author.close()
        found.append(look(tmp_path / name).identity)
    assert found[0] != found[1]


def test_journal_of_an_older_version_gets_an_identity_at_its_next_start(tmp_path: Path) -> None:
    shutil.copytree(OLDER, tmp_path / "j")
    assert look(tmp_path / "j").identity == fmt.UNKNOWN
    before = len(scan.segments(tmp_path / "j"))
    author = Author(tmp_path / "j")
    author.open()
    assert author.journal.status().segments == before + 1
    author.close()
    identity = look(tmp_path / "j").identity
    assert identity != fmt.UNKNOWN
    author.open()
    author.append("log", b"x")
    author.close()
    assert look(tmp_path / "j").identity == identity
    assert not verify(tmp_path / "j").problems


def without_identity(directory: Path) -> None:
    """Write the header of the only segment as an older version wrote it."""
    (segment,) = scan.segments(directory)
    data = segment.path.read_bytes()
    old = attrs.evolve(fmt.SegmentHeader.unpack(data[: fmt.SEGMENT_HEADER.size]), identity=fmt.UNKNOWN).pack()
    segment.path.write_bytes(old + data[len(old) :])


@pytest.mark.parametrize("call", ["write", "sync"])
def test_reserved_numbers_are_not_used_again_if_the_start_that_gives_an_identity_fails(
    open_journal, tmp_path: Path, call: str, logged_errors
) -> None:
    lazy = {"durability": parse_durability("never")}
    bench = open_journal(**lazy)
    bench.append(b"a")
    bench.crash()
    (segment,) = scan.segments(bench.directory)
    data = segment.path.read_bytes()
    unsynced = data.index(fmt.BATCH_MAGIC, scan.read_mark(bench.directory))
    segment.path.write_bytes(data[:unsynced].ljust(len(data), b"\0"))  # the power was cut
    without_identity(bench.directory)
    shutil.copytree(bench.directory, tmp_path / "kept")
    failures = 0
    while True:
        try:
            open_journal(FaultyFiles(name=call, nth=failures + 1), **lazy).crash()
        except JournalError:
            failures += 1
        else:
            break
        again = open_journal(**lazy)
        assert again.journal.ends() == {"s": RESERVE + 1}
        again.crash()
        shutil.rmtree(bench.directory)
        shutil.copytree(tmp_path / "kept", bench.directory)
    assert failures > 3


def test_a_segment_of_another_journal_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        author = Author(tmp_path / name)
        author.open()
        for _ in range(10):
            author.append("log", b"x" * 300)
        author.close()
    strange = scan.segments(tmp_path / "b")[1].path
    shutil.copy(strange, tmp_path / "a" / strange.name)
    author = Author(tmp_path / "a")
    with pytest.raises(JournalCorrupt, match=f"{strange.name} belongs to another journal"):
        author.open()
    assert any("belongs to another journal" in str(problem) for problem in verify(tmp_path / "a").problems)


def test_quarantine_keeps_the_identity(open_journal) -> None:
    bench = open_journal(segment_size=4 << 10)
    fill(bench)
    bench.close()
    identity = look(bench.directory).identity
    damaged = scan.segments(bench.directory)[1].path
    flip(damaged, 20)
    set_aside(bench.directory, Files())
    assert set(identities(bench.directory)) == {identity}
    assert sum(len(run) for run in dump.runs(bench.directory)) == 30
    assert not verify(bench.directory).problems
