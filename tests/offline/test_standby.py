"""A standby is the same log as its source, and a promoted one uses no number that its source may have given out."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from fyrehose.errors import ConfigError, JournalCorrupt, JournalError, JournalFull, JournalLocked
from fyrehose.journal import scan
from fyrehose.journal.copies import STANDBY, followed
from fyrehose.journal.ends import END
from fyrehose.journal.files import Files, lock
from fyrehose.journal.follower import REPLICA
from fyrehose.journal.recovery import recover
from fyrehose.journal.streams import Streams
from fyrehose.journal.writer import NoRoom, SyncFailed, Writer
from fyrehose.offline import branching
from fyrehose.offline.backup import Backup
from fyrehose.offline.branching import SKIPPED
from fyrehose.offline.mirror import Replica
from fyrehose.offline.offsets import Offsets
from fyrehose.offline.places import Directory
from fyrehose.offline.standby import Lag, Standby, answers, promote
from fyrehose.offline.verify import verify
from fyrehose.offline.view import look
from fyrehose.records import LAST_SEQ, Run
from tests.doubles.disk import RecordingFiles, images
from tests.offline.conftest import flip, is_same_log

Opener = Callable[..., Any]
URL = "http://127.0.0.1:1"


def fill(bench: Any, count: int, stream: str = "s") -> None:
    """Append *count* messages, each of which is a batch."""
    for number in range(count):
        assert bench.append(b"%06d" % number + b"." * 300, stream=stream).called


def follow(source: Path, target: Path, files: Files | None = None) -> Lag:
    """Catch up with a source once; return the lag."""
    with Replica(target, files or Files()) as replica:
        copying = Backup(Directory(source), replica, mirror=True)
        standby = Standby(copying)
        standby.catch_up(copying.run)
        return standby.lag


@pytest.fixture
def source(open_journal: Opener) -> Any:
    """Return a journal of several segments that is open."""
    bench = open_journal(segment_size=4096)
    fill(bench, 30)
    return bench


@pytest.fixture
def standby(source: Any, tmp_path: Path) -> Path:
    """Return a standby of the journal."""
    follow(source.directory, tmp_path / "b")
    return tmp_path / "b"


class TestFollowing:
    def test_a_standby_has_the_same_log_and_no_server_starts_in_it(
        self, source: Any, standby: Path, open_journal: Opener
    ) -> None:
        assert is_same_log(source.directory, standby)
        assert verify(standby).problems == []
        with pytest.raises(ConfigError, match=r"is a standby, which follows .* run `fyrehose journal promote`"):
            open_journal(directory=standby)
        assert followed(standby) == str(Directory(source.directory))

    def test_directory_is_marked_before_the_first_byte_is_copied(self, source: Any, tmp_path: Path) -> None:
        target, seen = tmp_path / "b", []
        with Replica(target, Files()) as replica:
            copying = Backup(Directory(source.directory), replica)
            Standby(copying).catch_up(lambda: seen.append(followed(target)))
        assert seen == [str(Directory(source.directory))]

    def test_directory_with_another_journal_is_not_marked(
        self, source: Any, open_journal: Opener, tmp_path: Path
    ) -> None:
        said: list[str] = []
        source.close()
        other = open_journal(directory=source.directory.parent / "other")
        fill(other, 1)
        other.close()
        with pytest.raises(JournalError, match="is another journal"):
            follow(source.directory, other.directory)
        with Replica(other.directory, Files()) as replica:
            copying = Backup(Directory(tmp_path / "away"), replica)
            Standby(copying).catch_up(lambda: copying.run_patiently(said.append))
        assert len(said) == 1, "the source was not reached"
        assert not (other.directory / STANDBY).exists()
        open_journal(directory=other.directory)

    def test_backup_becomes_a_standby(self, source: Any, tmp_path: Path) -> None:
        with Replica(tmp_path / "b", Files()) as replica:
            Backup(Directory(source.directory), replica).run()
        fill(source, 5)
        follow(source.directory, tmp_path / "b")
        assert followed(tmp_path / "b") == str(Directory(source.directory))
        assert is_same_log(source.directory, tmp_path / "b")

    def test_the_lag_is_measured_when_the_source_answers(self, source: Any, tmp_path: Path) -> None:
        now, lags, away = [100.0], [], tmp_path / "away"

        def later() -> None:
            now[0] += 10

        def lose() -> None:
            later()
            source.directory.rename(away)

        def end() -> None:
            raise KeyboardInterrupt

        steps: list[Callable[[], None]] = [later, lose, later, later, end]
        said: list[str] = []
        with Replica(tmp_path / "b", Files()) as replica:
            copying = Backup(Directory(source.directory), replica, seconds=lambda: now[0])
            standby = Standby(copying, lags.append, lambda seconds: steps.pop(0)())
            assert standby.lag == Lag(0, 0, True)
            standby.catch_up(copying.run)
            with pytest.raises(KeyboardInterrupt):
                standby.follow(1, said.append)
        assert [(lag.size, lag.seconds, lag.reachable) for lag in lags] == [
            (0, 0, True),
            (0, 0, True),
            (0, 0, True),
            (0, 10, False),
            (0, 20, False),
            (0, 30, False),
        ]
        assert len(said) == 1, "a source that is away is reported once"

    def test_the_next_source_is_used_while_one_is_away(self, source: Any, tmp_path: Path) -> None:
        source.close()
        here, there = tmp_path / "here", tmp_path / "there"
        shutil.copytree(source.directory, here)
        shutil.copytree(source.directory, there)
        target, steps = tmp_path / "b", [lambda: here.rename(tmp_path / "lost"), lambda: None]
        said: list[str] = []
        with Replica(target, Files()) as replica:
            copying = Backup(Directory(here), replica, others=[Directory(there)])
            standby = Standby(copying, sleep=lambda seconds: steps.pop(0)())
            standby.catch_up(copying.run)
            assert followed(target) == str(Directory(here))
            with pytest.raises(IndexError):
                standby.follow(1, said.append)
        assert followed(target) == str(Directory(there))
        assert is_same_log(there, target)
        assert not said, "the standby goes on without a pause"

    def test_pauses_grow_while_the_source_is_away(self, source: Any, tmp_path: Path) -> None:
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 1:
                source.directory.rename(tmp_path / "away")
            elif len(pauses) == 8:
                (tmp_path / "away").rename(source.directory)
            elif len(pauses) == 10:
                raise KeyboardInterrupt

        with Replica(tmp_path / "b", Files()) as replica, pytest.raises(KeyboardInterrupt):
            Backup(Directory(source.directory), replica).follow(0.25, lambda line: None, sleep)
        assert pauses == [0.25, 0.5, 1, 2, 4, 5, 5, 5, 0.25, 0.25]


class TestPromoting:
    def test_a_promoted_standby_uses_no_number_of_the_source_again(
        self, source: Any, tmp_path: Path, open_journal: Opener
    ) -> None:
        for stream in ("quiet", "retired", "forgotten"):
            fill(source, 2, stream)
        source.journal.retire(["retired"])
        follow(source.directory, tmp_path / "b")
        fill(source, 7)
        fill(source, 3, "new")
        lost = dict(source.journal.ends())
        end = promote(tmp_path / "b", Files())
        assert (end.streams, end.position) == (3, look(source.directory).mark - end_of(source, end.position))
        report = verify(tmp_path / "b")
        assert report.problems == []
        assert recover(tmp_path / "b", Files()).closed
        promoted = open_journal(directory=tmp_path / "b")
        ends = promoted.journal.ends()
        assert all(ends[stream] > lost[stream] + SKIPPED - 100 for stream in ("s", "quiet"))
        assert promoted.journal.floor > lost["new"] + SKIPPED - 100
        assert promoted.journal.retired()["retired"] > SKIPPED
        assert len(list(promoted.records("s"))) == 30

    def test_a_new_message_has_a_number_behind_those_that_were_skipped(
        self, standby: Path, open_journal: Opener
    ) -> None:
        promote(standby, Files())
        promoted = open_journal(directory=standby)
        for stream, last in (("s", promoted.journal.ends()["s"]), ("new", promoted.journal.floor)):
            promoted.next[stream] = last + 1
            fill(promoted, 1, stream)
            assert list(promoted.records(stream))[-1].seq == last + 1 > SKIPPED
        promoted.close()
        assert verify(standby).problems == []

    def test_positions_are_valid_in_both_logs_up_to_the_promotion(self, source: Any, standby: Path) -> None:
        """Programs that remember a position, such as a lake, continue up to there, and are refused beyond it."""
        offsets = Offsets(Directory(source.directory))
        common = offsets.at(look(standby).mark)
        fill(source, 1)
        beyond = offsets.at(look(source.directory).mark)
        promote(standby, Files())
        promoted = Offsets(Directory(standby))
        promoted.check(common, look(standby), "begin anew")
        writer = Writer(standby, recover(standby, Files()), 4096)
        writer.open(0)
        while writer.position < beyond.position:
            writer.skip_numbers(1)
        # Let a batch end exactly where the lost log ended.
        run = Run.of("s", [b"x"], source="test").numbered(writer.streams.ends["s"] + 1, 1)
        writer.commit([[run]], 1, 1)
        writer.close(in_order=True)
        with pytest.raises(JournalCorrupt, match="does not continue at position"):
            promoted.check(attrs.evolve(beyond, position=writer.position), look(standby), "begin anew")

    def test_the_logs_of_two_promoted_standbys_differ(self, source: Any, tmp_path: Path) -> None:
        for name in ("b", "c"):
            follow(source.directory, tmp_path / name)
            promote(tmp_path / name, Files())
        first, second = (recover(tmp_path / name, Files()) for name in ("b", "c"))
        assert first.identity == second.identity
        assert first.chain != second.chain

    def test_a_promoted_journal_does_not_follow_its_source_again(self, source: Any, standby: Path) -> None:
        promote(standby, Files())
        fill(source, 30)
        with pytest.raises(JournalError, match="differ at position"):
            follow(source.directory, standby)
        assert not (standby / STANDBY).exists()

    def test_only_a_standby_with_a_journal_that_nobody_follows_is_promoted(
        self, source: Any, standby: Path, tmp_path: Path
    ) -> None:
        held = lock(standby)
        with pytest.raises(JournalLocked, match="stop that process first"):
            promote(standby, Files())
        os.close(held)
        (standby / REPLICA).write_text("a\n")
        promote(standby, Files())
        assert not (standby / REPLICA).exists()
        for directory in (standby, source.directory, tmp_path):
            with pytest.raises(ConfigError, match="is no standby"):
                promote(directory, Files())
        (tmp_path / STANDBY).write_text(URL)
        with pytest.raises(ConfigError, match=f"nothing was copied from {URL}"):
            promote(tmp_path, Files())

    def test_promoting_truncates_a_torn_end(self, source: Any, standby: Path) -> None:
        with scan.segments(standby)[-1].path.open("ab") as file:
            file.write(b"half a batch")
        promote(standby, Files())
        assert verify(standby).problems == []

    def test_a_damaged_standby_is_not_promoted(self, standby: Path) -> None:
        flip(scan.segments(standby)[-1].path, -10)
        with pytest.raises(JournalCorrupt):
            promote(standby, Files())
        assert (standby / STANDBY).exists()

    def test_a_copied_standby_that_lacks_its_end_is_not_promoted(self, standby: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(standby, tmp_path / "copy"))
        scan.segments(copy)[-1].path.unlink()
        with pytest.raises(JournalCorrupt, match="is shorter than its file END says"):
            promote(copy, Files())
        whole = Path(shutil.copytree(standby, tmp_path / "whole"))
        promote(whole, Files())
        assert not (whole / END).exists(), "a server may start there"

    @pytest.mark.parametrize(("failure", "kind"), [(NoRoom("full"), JournalFull), (SyncFailed("sync"), JournalError)])
    def test_promoting_reports_a_failed_disk_and_can_be_repeated(
        self, standby: Path, failure: Exception, kind: type[JournalError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(branching.Writer, "skip_numbers", fail)
            with pytest.raises(kind, match=f"cannot be promoted: {failure}; free some space, or check the disk"):
                promote(standby, Files())
        assert (standby / STANDBY).exists()
        promote(standby, Files())
        assert recover(standby, Files()).streams.ends["s"] > SKIPPED

    def test_power_cut_at_any_step_leaves_a_standby_or_a_promoted_journal(self, standby: Path, tmp_path: Path) -> None:
        files, found = RecordingFiles(standby), set()
        promote(standby, files)
        for upto in range(len(files.log) + 1):
            for number, state in enumerate(images(files, upto, Random(upto), 2)):
                image = tmp_path / f"{upto}-{number}"
                image.mkdir()
                for name, data in state.items():
                    (image / name).write_bytes(data)
                ended = recover(image, Files()).streams.ends["s"]
                assert ended == 30 or ended > SKIPPED
                found.add(((image / STANDBY).exists(), ended > SKIPPED))
        assert found == {(True, False), (True, True), (False, True)}


class TestSkipping:
    def test_promoting_skips_no_numbers_beyond_the_largest(self) -> None:
        streams = Streams({"full": LAST_SEQ, "nearly": LAST_SEQ - 1}, {"retired": LAST_SEQ - 2}, floor=LAST_SEQ)
        gaps, retired = streams.skipping(10)
        assert [(gap.stream, gap.first, gap.last) for gap in gaps] == [
            ("nearly", LAST_SEQ, LAST_SEQ),
            ("retired", LAST_SEQ - 1, LAST_SEQ),
            ("", 1, LAST_SEQ),
        ]
        assert [(entry.stream, entry.last) for entry in retired] == [("retired", LAST_SEQ)]


def test_a_server_answers_if_it_accepts_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert answers(f"http://127.0.0.1:{port}")
    assert not answers(f"http://127.0.0.1:{port}")


def end_of(source: Any, position: int) -> int:
    """Return how many durable bytes of the source are behind a position."""
    return int(look(source.directory).mark - position)
