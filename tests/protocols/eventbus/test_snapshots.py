"""Snapshots: contents, order, end."""

from __future__ import annotations

import pytest

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus.frames import Dialect, Subtrees, SyncStart
from fyrehose.protocols.eventbus.queued_memory import Pool
from fyrehose.protocols.eventbus.snapshots import COST, COST_BYTE, SnapshotAnswer, Snapshots
from fyrehose.records import Run


def snapshot(
    identity: bytes = b"c",
    spec: bytes = b"",
    after: int = 0,
    dialect: Dialect = Dialect.DECIMAL,
    network: str = "10.0.0.1",
) -> SnapshotAnswer:
    request = SyncStart(subtrees=Subtrees.parse(spec), sequence=after, dialect=dialect)
    return SnapshotAnswer(identity, request, False, dialect, Pool(1 << 30).account(identity, network))


def runs(*topics: str, first: int = 1, each: int = 2) -> list[Run]:
    found = []
    for topic in topics:
        found.append(Run.of("s", [b"x"] * each, source="figg", topic=topic).numbered(first, 1))
        first += each
    return found


def drain(snapshot: SnapshotAnswer, journal: list[Run], piece: int = 1) -> list[tuple[bytes, bytes]]:
    """Return command and sequence of all messages; the journal is read *piece* runs at a time."""
    sent = []
    while not snapshot.ended:
        message = snapshot.peek()
        assert message == snapshot.peek()
        if message is None:
            rest = [run.slice(max(0, snapshot.next - run.first_seq), len(run)) for run in journal]
            snapshot.feed([run for run in rest if run.last_seq >= snapshot.next][:piece], 1.0)
            continue
        sent.append((bytes(message[0]), bytes(message[2])))
        snapshot.sent(1.0)
    return sent


class TestOne:
    def test_snapshot_without_a_position_has_the_whole_stream(self) -> None:
        one = snapshot()
        one.start(4, 0)
        assert drain(one, runs("/a/", "/b/")) == [
            (b"SYNC", b"1"),
            (b"SYNC", b"2"),
            (b"SYNC", b"3"),
            (b"SYNC", b"4"),
            (b"SYNCEND", b"4"),
        ]

    def test_snapshot_ends_where_the_stream_ended_at_its_start(self) -> None:
        one = snapshot()
        one.start(3, 0)
        assert drain(one, runs("/a/", "/b/", "/c/"), piece=9)[-2:] == [(b"SYNC", b"3"), (b"SYNCEND", b"3")]

    def test_snapshot_respects_sequence_and_subtrees(self) -> None:
        one = snapshot(spec=b"/a/;/c/", after=1)
        one.start(8, 0)
        assert drain(one, runs("/a/", "/b/", "/c/d/", "/x/")) == [
            (b"SYNC", b"2"),
            (b"SYNC", b"5"),
            (b"SYNC", b"6"),
            (b"SYNCEND", b"6"),
        ]

    @pytest.mark.parametrize(("after", "last"), [(0, 0), (3, 4), (4, 4)])
    def test_empty_snapshot_ends_with_the_requested_sequence(self, after: int, last: int) -> None:
        one = snapshot(after=after)
        one.start(last, 0)
        assert drain(one, []) == [(b"SYNCEND", b"%d" % after)]

    @pytest.mark.parametrize(("after", "last"), [(1, 0), (5, 4), (7, 4), (2**48 - 1, 4)])
    def test_a_position_beyond_the_end_is_answered_with_the_end(self, after: int, last: int) -> None:
        one = snapshot(after=after)
        one.start(last, 0)
        assert drain(one, []) == [(b"SYNCEND", b"%d" % last)]

    def test_snapshot_without_matches_ends_with_the_requested_sequence(self) -> None:
        one = snapshot(spec=b"/z/", after=1)
        one.start(4, 0)
        assert drain(one, runs("/a/", "/b/")) == [(b"SYNCEND", b"1")]

    def test_snapshot_skips_removed_records(self) -> None:
        one = snapshot()
        one.start(6, 0)
        assert drain(one, runs("/b/", first=5))[0] == (b"SYNC", b"5")

    def test_snapshot_of_removed_records_is_empty(self) -> None:
        one = snapshot()
        one.start(3, 0)
        assert drain(one, runs("/b/", first=5)) == [(b"SYNCEND", b"0")]

    def test_snapshot_uses_its_dialect(self) -> None:
        one = snapshot(dialect=Dialect.BINARY)
        one.start(2, 0)
        assert drain(one, runs("/a/"))[-1] == (b"SYNCEND", b"\0\0\0\0\0\0\0\x02")


class TestMany:
    def test_some_snapshots_are_active_and_others_wait(self) -> None:
        snapshots = Snapshots(2, 1 << 20)
        for n in range(5):
            assert snapshots.add(snapshot(b"%d" % n)) is None
        snapshots.admit(9, 1.5)
        assert list(snapshots.active) == [b"0", b"1"]
        assert snapshots.active[b"0"].last == 9
        turns = [snapshots.next() for _ in range(3)]
        assert [one.identity for one in turns if one is not None] == [b"0", b"1", b"0"]
        assert snapshots.next({b"0", b"1"}) is None, "both were served in this turn"
        snapshots.forget(snapshots.active[b"0"])
        snapshots.admit(9, 2)
        assert list(snapshots.active) == [b"1", b"2"]
        assert len(snapshots) == 4

    @pytest.mark.parametrize("spec", [b"", b"/a/" * 80])
    def test_the_requests_of_one_network_take_half_of_the_memory(self, spec: bytes) -> None:
        each = COST + COST_BYTE * len(spec)
        snapshots = Snapshots(1, 10 * each)
        for n in range(5):
            snapshots.add(snapshot(b"%d" % n, spec))
        with pytest.raises(RemoteProtocolError):
            snapshots.add(snapshot(b"5", spec))
        assert snapshots.add(snapshot(b"4", spec)) is not None, "a repeated request uses no more memory"
        for n in range(10, 15):
            snapshots.add(snapshot(b"%d" % n, spec, network="10.0.0.2"))
        with pytest.raises(RemoteProtocolError):
            snapshots.add(snapshot(b"x", spec, network="10.0.0.3"))
        assert snapshots.memory.used == snapshots.limit
        snapshots.clear()
        assert snapshots.memory.used == 0

    def test_networks_take_turns(self) -> None:
        snapshots = Snapshots(4, 1 << 20)
        for n in range(100):
            snapshots.add(snapshot(b"%d" % n))
        snapshots.add(snapshot(b"a", network="10.0.0.2"))
        snapshots.add(snapshot(b"b", network="10.0.0.2"))
        snapshots.admit(9, 0)
        assert list(snapshots.active) == [b"0", b"a", b"1", b"b"]

    def test_parked_snapshot_continues_where_it_stopped(self) -> None:
        snapshots, journal = Snapshots(1, 1 << 20), runs("/a/", "/b/", "/a/")
        one = snapshot(spec=b"/a/")
        snapshots.add(one)
        snapshots.admit(6, 0)
        one.feed(journal, 0)
        one.peek()
        one.sent(0)
        snapshots.add(snapshot(b"d"))
        snapshots.park(one)
        snapshots.admit(7, 1)
        assert (list(snapshots.active), list(snapshots.parked), len(snapshots)) == ([b"d"], [b"c"], 2)
        snapshots.wait(one)
        assert not snapshots.parked
        snapshots.forget(snapshots.active[b"d"])
        snapshots.admit(8, 2)
        assert drain(one, journal) == [(b"SYNC", b"2"), (b"SYNC", b"5"), (b"SYNC", b"6"), (b"SYNCEND", b"6")]

    def test_snapshot_parked_before_its_end_still_ends(self) -> None:
        snapshots, one = Snapshots(1, 1 << 20), snapshot(after=4)
        snapshots.add(one)
        snapshots.admit(4, 0)
        assert one.peek() is not None
        snapshots.park(one)
        snapshots.wait(one)
        snapshots.admit(5, 0)
        assert drain(one, []) == [(b"SYNCEND", b"4")]

    def test_many_requests_of_one_client_make_one_snapshot(self) -> None:
        snapshots = Snapshots(1, 1 << 20)
        first = snapshot(after=0)
        snapshots.add(first)
        for n in range(1, 1_000):
            replaced = snapshots.add(snapshot(after=n))
            assert replaced is not None
        assert len(snapshots) == 1
        snapshots.admit(9, 0)
        assert snapshots.active[b"c"].request.sequence == 999

    def test_new_request_replaces_the_old_one(self) -> None:
        snapshots = Snapshots(1, 1 << 20)
        first, second = snapshot(after=1), snapshot(after=2)
        snapshots.add(first)
        snapshots.admit(9, 0)
        snapshots.add(snapshot(b"d"))
        assert snapshots.add(second) is first
        snapshots.forget(first)
        assert len(snapshots) == 2
        snapshots.admit(9, 0)
        assert list(snapshots.active) == [b"d"]

    def test_clear_removes_all_snapshots(self) -> None:
        snapshots = Snapshots(1, 1 << 20)
        snapshots.add(snapshot(b"a"))
        snapshots.admit(1, 0)
        snapshots.add(snapshot(b"b"))
        snapshots.clear()
        assert len(snapshots) == 0
        assert not snapshots.waiting
        assert snapshots.next() is None
