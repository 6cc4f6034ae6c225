"""The writer of a replicated journal writes identical bytes; bytes that were not released are set aside."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import attrs
import pytest

from fyrehose.errors import JournalCorrupt
from fyrehose.journal import format as fmt
from fyrehose.journal import scan
from fyrehose.journal.exchange import Batches, Handover
from fyrehose.journal.files import Files
from fyrehose.journal.follower import REPLICA, bring_back, continuing, cut_at_mark, set_aside_beyond
from fyrehose.journal.recovery import recover
from fyrehose.journal.writer import NoRoom, Writer
from fyrehose.records import Run
from tests.doubles.disk import RecordingFiles, UnsyncedFiles, images, put
from tests.doubles.files import FaultyFiles

SEGMENT = 1 << 14


def replica(directory: Path, files: Files | None = None) -> Writer:
    directory.mkdir(exist_ok=True)
    files = files or Files()
    cut_at_mark(directory, files)
    made = Writer(directory, recover(directory, files), SEGMENT, True, files, handover=Handover())
    made.open(1)
    (directory / REPLICA).touch()
    return made


def commit(of: Writer, number: int, size: int = 1000, stream: str = "s") -> None:
    of.commit([[Run.of(stream, [b"%d" % number + bytes(size)], source="t").numbered(number, number)]], number, number)


def bytes_of(batches: Sequence[Batches]) -> bytes:
    return b"".join(each.data for each in batches)


def closed_leader(directory: Path) -> Writer:
    """Return a leader that has written several segments, and is closed."""
    leader = replica(directory / "leader")
    leader.lead(1)
    for number in range(1, 40):
        commit(leader, number)
        leader.released = leader.position
    leader.close(False)
    return leader


def follow(leader: Writer, *followers: Writer) -> list[tuple[int, list[Batches]]]:
    """Release what the leader has written, and apply it to the followers."""
    outgoing = leader.handover.take()
    leader.released = leader.position
    for position, batches in outgoing:
        for follower in followers:
            follower.apply(position, bytes_of(batches))
    return outgoing


def log_of(directory: Path) -> bytes:
    """Return the bytes of the log, without the space that is allocated ahead in its last segment."""
    data = b""
    for segment in scan.segments(directory):
        assert segment.base == len(data), "every segment is as long as its part of the log, except the last"
        data += segment.path.read_bytes()
    return data.rstrip(b"\0")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Writer, Writer]:
    """Return a leader and a follower."""
    leader, follower = replica(tmp_path / "leader"), replica(tmp_path / "follower")
    leader.lead(1)
    return leader, follower


def test_opening_a_replica_writes_nothing(tmp_path: Path) -> None:
    replica(tmp_path).close(True)
    assert scan.segments(tmp_path) == []
    replica(tmp_path).close(True)


def test_a_follower_has_the_same_bytes(pair: tuple[Writer, Writer]) -> None:
    leader, follower = pair
    for number in range(1, 60):
        commit(leader, number)
        follow(leader, follower)
    leader.retire(["s"])
    follow(leader, follower)
    assert len(scan.segments(leader.directory)) > 3
    assert log_of(follower.directory) == log_of(leader.directory)
    assert (follower.position, follower.streams.retired) == (leader.position, {"s": 59})
    for each in pair:
        each.close(True)
    recovered = recover(follower.directory, Files())
    assert (recovered.position, recovered.streams.retired) == (leader.position, {"s": 59})
    assert recovered.identity == recover(leader.directory, Files()).identity != fmt.UNKNOWN


def test_a_follower_that_becomes_the_leader_continues_the_log(pair: tuple[Writer, Writer]) -> None:
    leader, follower = pair
    for number in range(1, 30):
        commit(leader, number)
        follow(leader, follower)
    follower.lead(5)
    for number in range(30, 60):
        commit(follower, number)
        follow(follower, leader)
    assert log_of(follower.directory) == log_of(leader.directory)


def test_reopening_and_closing_a_replica_add_no_bytes(pair: tuple[Writer, Writer]) -> None:
    leader, follower = pair
    commit(leader, 1)
    follow(leader, follower)
    before = log_of(follower.directory)
    for _ in range(2):
        follower.close(True)
        follower = replica(follower.directory)
    assert log_of(follower.directory) == before
    commit(leader, 2)
    follow(leader, follower)
    assert log_of(follower.directory) == log_of(leader.directory)


def test_durable_mark_never_exceeds_the_released_position(pair: tuple[Writer, Writer]) -> None:
    leader, _ = pair
    commit(leader, 1)
    leader.released = leader.position
    released = leader.position
    for number in range(2, 5):
        commit(leader, number)
        assert scan.read_mark(leader.directory) <= released
    assert leader.note() == released == scan.read_mark(leader.directory)


@pytest.mark.parametrize("seed", range(12))
def test_unreleased_batches_are_set_aside_and_whole_ones_can_be_brought_back(
    pair: tuple[Writer, Writer], seed: int
) -> None:
    """Where the shared log goes on, they stay away; one of the files may have been cut by a power failure."""
    dice, (leader, follower) = Random(seed), pair
    for number in range(1, 40):  # over several segments
        commit(leader, number, dice.choice([0, 10, 1000, 4000]))
        if number == 3:
            follow(leader, follower)
            leader.note()
    released, log, ends = leader.released, log_of(leader.directory), list[int]()
    segments = scan.segments(leader.directory)
    for each in segments:
        with scan.SegmentReader(each.path, each.base, limit=leader.position) as reader:
            batches = reader.batches(each.base + fmt.SEGMENT_HEADER.size, min(each.end, leader.position))
            ends += [header.end for header, _ in batches]
    leader.close(False)
    again = replica(leader.directory)
    assert (again.position, log_of(again.directory)) == (released, log[:released].rstrip(b"\0"))
    aside = sorted(again.directory.glob("torn-*.bytes"))
    assert [int(path.stem[5:], 16) for path in aside] == [released, *(each.base for each in segments[1:])]
    if seed % 3:
        path = dice.choice(aside)
        path.write_bytes(path.read_bytes()[: dice.randrange(path.stat().st_size)])
        at = int(path.stem[5:], 16) + path.stat().st_size
        bring_back(again, continuing(again.directory, released, again.identity, again.chain), Files())
        end = max(end for end in ends if not log[at:end].strip(b"\0"))
        assert (again.position, log_of(again.directory)) == (end, log[:end].rstrip(b"\0"))
    else:
        again.lead(1)
        commit(again, 4)
        follow(again, follower)
        assert log_of(follower.directory) == log_of(again.directory)


def test_the_first_start_in_a_cluster_sets_nothing_aside(tmp_path: Path) -> None:
    alone = Writer(tmp_path, recover(tmp_path, Files()), SEGMENT)
    alone.open(1)
    commit(alone, 1)
    alone.close(True)
    scan.Segment(tmp_path / scan.MARK_NAME, 0, 0).path.write_bytes(scan.pack_mark(0, 0))
    of = replica(tmp_path)
    assert of.position == alone.position
    assert scan.read_mark(tmp_path) == alone.position


def test_a_replica_whose_durable_mark_is_unknown_does_not_open(pair: tuple[Writer, Writer]) -> None:
    leader, _ = pair
    commit(leader, 1)
    leader.close(True)
    (leader.directory / scan.MARK_NAME).unlink()
    with pytest.raises(JournalCorrupt, match="MARK is missing"):
        replica(leader.directory)
    assert scan.segments(leader.directory)


def test_a_log_that_ends_before_its_durable_mark_is_reported(pair: tuple[Writer, Writer]) -> None:
    leader, _ = pair
    leader.close(True)
    with pytest.raises(JournalCorrupt, match="ends before position"):
        set_aside_beyond(leader.directory, 1 << 30, Files())


@pytest.mark.parametrize("at", [0, 70, 150, -1])
def test_damaged_batches_are_refused_and_nothing_is_written(pair: tuple[Writer, Writer], at: int) -> None:
    leader, follower = pair
    commit(leader, 1)
    first, second = leader.handover.take()
    for position, batches in (first, second):
        data = bytearray(bytes_of(batches))
        data[at if at < len(data) else 0] ^= 4
        before = follower.position, follower.durable
        with pytest.raises(fmt.Damage):
            follower.apply(position, bytes(data))
        assert (follower.position, follower.durable) == before
        follower.apply(position, bytes_of(batches))
    assert log_of(follower.directory) == log_of(leader.directory)


def test_batches_that_do_not_continue_the_log_are_refused(tmp_path: Path) -> None:
    one, other = replica(tmp_path / "one"), replica(tmp_path / "other")
    for of, stream in ((one, "s"), (other, "t")):
        of.lead(1)
        commit(of, 1, stream=stream)
    start, batch = other.handover.take()
    follower = replica(tmp_path / "follower")
    with pytest.raises(fmt.Damage, match="belongs at"):
        follower.apply(batch[0], bytes_of(batch[1]))
    follow(one, follower)
    commit(one, 2)
    commit(one, 3)
    _, (position, batches) = one.handover.take()
    with pytest.raises(fmt.Damage, match="belongs at"):
        follower.apply(position, bytes_of(batches))
    commit(other, 2, size=990)
    position, batches = other.handover.take()[-1]
    with pytest.raises(fmt.Damage, match="does not continue this log"):
        follower.apply(position, bytes_of(batches))
    with pytest.raises(fmt.Damage, match="another journal"):
        follower.apply(start[0], bytes_of(start[1]))


@pytest.mark.parametrize("name", ["write", "allocate", "rename", "open", "truncate"])
def test_applying_is_repeated_after_a_full_disk(pair: tuple[Writer, Writer], name: str, tmp_path: Path) -> None:
    leader, _ = pair
    failed = 0
    files = FaultyFiles()
    follower = replica(tmp_path / "full", files)
    for number in range(1, 40):
        commit(leader, number)
        for position, batches in leader.handover.take():
            files.name, files.nth, files.error = name, files.calls[name] + 1, errno.ENOSPC
            try:
                follower.apply(position, bytes_of(batches))
            except NoRoom:
                failed += 1
                files.name = ""
                follower.apply(position, bytes_of(batches))
    assert failed
    assert log_of(follower.directory) == log_of(leader.directory)


def test_a_follower_recovers_from_every_power_cut(tmp_path: Path) -> None:
    """Released batches are still there after the power cut; the others are applied again."""
    leader = replica(tmp_path / "leader")
    leader.lead(1)
    (tmp_path / "follower").mkdir()
    files = RecordingFiles(tmp_path / "follower")
    follower = replica(tmp_path / "follower", files)
    sent, noted = [], []
    for number in range(1, 40):
        commit(leader, number, size=900)
        sent += follow(leader, follower)
        if number % 7 == 0:
            mark = follower.note()
            noted.append((len(files.log), mark))
    rnd, checked = Random(1), 0
    for at, (upto, mark) in enumerate(noted):
        until = noted[at + 1][0] if at + 1 < len(noted) else len(files.log)
        for cut in rnd.sample(range(upto, until), 2):
            for number, image in enumerate(images(files, cut, rnd, 2)):
                directory = put(tmp_path / f"{at}-{cut}-{number}", image)
                (directory / REPLICA).touch()
                again = replica(directory)
                assert again.position >= mark
                for position, batches in sent:
                    if position >= again.position:
                        again.apply(position, bytes_of(batches))
                assert log_of(directory) == log_of(leader.directory)
                again.close(True)
                checked += 1
    assert checked > 20


def test_the_time_of_records_does_not_go_back_when_a_follower_with_a_slow_clock_leads(
    pair: tuple[Writer, Writer],
) -> None:
    leader, follower = pair
    leader.commit([[Run.of("s", [b"x"], source="t").numbered(1, 5000)]], 5000, 5000)
    follow(leader, follower)
    follower.lead(1)
    commit(follower, 2)
    position, batches = follower.handover.take()[-1]
    assert fmt.BatchHeader.unpack(batches[0].data, position).time == 5000


def test_a_segment_of_another_position_is_refused(pair: tuple[Writer, Writer]) -> None:
    leader, follower = pair
    position, batches = leader.handover.take()[0]
    data = bytes_of(batches)
    head = fmt.SegmentHeader.unpack(data[: fmt.SEGMENT_HEADER.size])
    with pytest.raises(fmt.Damage, match="the segment does not continue this log"):
        follower.apply(position, attrs.evolve(head, base=64).pack() + data[fmt.SEGMENT_HEADER.size :])
    follower.apply(position, data)


def test_bytes_that_were_set_aside_stay_away_after_a_power_cut(tmp_path: Path) -> None:
    leader = closed_leader(tmp_path)
    files = RecordingFiles(leader.directory)
    found = scan.segments(leader.directory)
    kept = found[1].base
    notes = set_aside_beyond(leader.directory, kept, files)
    aside = sorted(leader.directory.glob("torn-*.bytes"), reverse=True)
    assert notes == [
        f"set aside {path.stat().st_size} bytes beyond the durable mark; they are in {path.name}" for path in aside
    ]
    assert len(notes) == len(found) - 1 > 1
    for image in images(files, len(files.log), Random(1), 20):
        assert [name for name in image if name.endswith(scan.SUFFIX)] == [found[0].path.name]


def test_a_segment_that_was_cut_is_synced(tmp_path: Path) -> None:
    leader = closed_leader(tmp_path)
    files = UnsyncedFiles()
    set_aside_beyond(leader.directory, scan.segments(leader.directory)[1].base + 2048, files)
    assert files.unsynced == set()


def test_small_batches_of_a_commit_are_handed_over_together_and_large_ones_one_by_one(tmp_path: Path) -> None:
    leader = Writer(tmp_path, recover(tmp_path, Files()), 1 << 22, True, Files(), handover=Handover())
    leader.open(1)
    leader.lead(1)
    leader.handover.take()
    number = 0
    for size, pieces in ((100, 1), (1 << 18, 3)):
        runs = [Run.of("s", [bytes(size)], source="t").numbered(number + i, 1) for i in (1, 2, 3)]
        leader.commit([[run] for run in runs], 1, 1)
        ((_, batches),) = leader.handover.take()
        assert len(batches) == pieces
        number += 3
    leader.close(False)


def test_a_copy_of_a_replica_is_known_by_its_mark(tmp_path: Path) -> None:
    replica(tmp_path / "original").close(True)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    assert [scan.look_at_mark(tmp_path / name, Files()).copied for name in ("original", "copy")] == [False, True]


def test_space_is_reserved_for_the_rest_of_a_segment_when_a_server_leads(
    pair: tuple[Writer, Writer],
) -> None:
    leader, follower = pair
    commit(leader, 1)
    follow(leader, follower)
    (segment,) = scan.segments(follower.directory)
    with segment.path.open("r+b") as file:
        file.truncate(follower.position)
    follower.lead(1)
    assert segment.path.stat().st_size == SEGMENT
