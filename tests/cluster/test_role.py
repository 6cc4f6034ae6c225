"""The rules of a role, one by one; tests/verification/torture/replication.py checks all of them while servers fail."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random

import attrs
import pytest

from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.members import Members
from fyrehose.cluster.role import (
    OUTSIDE,
    SIGNS,
    Action,
    Append,
    Changed,
    Compare,
    Cut,
    Fill,
    Listed,
    LookAt,
    Purge,
    Reopen,
    Role,
    State,
    Write,
)
from fyrehose.journal.exchange import Batches
from fyrehose.journal.format import SEGMENT_MAGIC
from tests.doubles.shared_log import whole

ME, OTHER = EntryWriter("me", 1), EntryWriter("other", 2)
#: The members with which this server begins a log that has no list of them.
FOUNDED = Members.founded("me", 3)


def takeover(epoch: int, position: int, writer: EntryWriter = OTHER, members: Members | None = None) -> LogEntry:
    return LogEntry(EntryKind.TAKEOVER, epoch, writer, position, members=members)


def checkpoint(epoch: int, position: int, members: Members | None = FOUNDED) -> LogEntry:
    return LogEntry(EntryKind.CHECKPOINT, epoch, ME, position, members=members)


def listed(position: int, members: Members) -> LogEntry:
    """Return the entry by which this server, the leader, changes the members."""
    return LogEntry(EntryKind.MEMBERS, 1, ME, position, members=members)


def data(epoch: int, position: int, content: bytes, writer: EntryWriter = OTHER, part: bool = False) -> LogEntry:
    return LogEntry(EntryKind.DATA, epoch, writer, position, content, part)


def actions(role: Role) -> list[Action]:
    """Return the actions, except for changes of the role."""
    return [action for action in role.take() if not isinstance(action, Changed)]


def appends(role: Role) -> list[LogEntry]:
    return [action.entry for action in role.take() if isinstance(action, Append)]


def leader(position: int = 0, window: int = 8, most: int = 100) -> Role:
    """Return a role that has become the leader of an empty shared log; its take-over is entry 1."""
    role = Role(ME, position, window=window, most=most)
    assert role.take_over(0)
    (entry,) = appends(role)
    role.accepted(entry, 1)
    assert role.state is State.LEADER
    role.take()
    return role


def follower(*entries: LogEntry, position: int = 0) -> Role:
    """Return a role that has read the take-over of another server, which is entry 1, and *entries* behind it."""
    role = Role(ME, position)
    for number, entry in enumerate((takeover(1, 0), *entries), 1):
        role.read(number, entry)
    return role


def test_a_takeover_is_an_append_under_the_condition_that_nothing_was_added() -> None:
    role = Role(ME, 0)
    role.read(1, takeover(4, 0))
    assert role.take_over(1)
    assert actions(role) == [Append(takeover(5, 0, ME, FOUNDED), 1, 1)]
    assert role.state is State.CANDIDATE
    role.accepted(takeover(5, 0, ME, FOUNDED), 2)
    assert role.state is State.LEADER
    assert role.leader == ME


def test_a_server_that_has_not_applied_and_synced_everything_does_not_take_over() -> None:
    role = follower(data(1, 0, b"abc"))
    assert not role.take_over(2), "the last entry is not on disk here"
    role.was_synced(3)
    assert not role.take_over(3), "there is another entry"
    assert role.take_over(2)


def test_a_follower_writes_entries_that_count_and_releases_synced_ones() -> None:
    role = follower(data(1, 0, b"abc"), data(9, 3, b"void"), data(1, 3, b"de"))
    assert actions(role) == [Write(0, b"abc"), Write(3, b"de")]
    assert role.mark == 0
    role.was_synced(3)
    assert role.mark == 3
    assert role.leader == OTHER


def test_a_follower_writes_a_divided_batch_as_a_whole() -> None:
    role = follower(data(1, 0, b"abc", part=True))
    assert actions(role) == []
    assert role.position == 0
    role.read(3, data(1, 3, b"de"))
    assert actions(role) == [Write(0, b"abcde")]


def test_an_incomplete_batch_of_a_deposed_leader_is_not_written() -> None:
    role = follower(data(1, 0, b"abc", part=True))
    role.read(3, takeover(2, 0))
    role.read(4, data(2, 0, b"xyz"))
    assert actions(role) == [Write(0, b"xyz")]


def test_an_incomplete_batch_of_the_leader_before_is_not_written_after_this_server_has_led() -> None:
    role = Role(ME, 0)
    role.read(1, takeover(1, 0))
    role.read(2, data(1, 0, b"abc", part=True))
    assert role.take_over(2)
    (begun,) = appends(role)
    role.accepted(begun, 3)
    role.append(0, whole(b"xyz"))
    (unknown,) = appends(role)
    role.found(4, None)
    assert actions(role) == [Cut(0)]
    role.was_cut()
    role.read(4, unknown)
    assert actions(role) == [Write(0, b"xyz")], "the append was accepted after all"


def test_batches_that_the_journal_has_are_compared_and_not_written_again() -> None:
    role = follower(data(1, 0, b"abc"), data(1, 3, b"def"), position=4)
    assert actions(role) == [Compare(0, b"abc"), Compare(3, b"d"), Write(4, b"ef")]
    role.contradicted(3)
    assert role.state is State.STOPPED


def test_a_leader_acknowledges_messages_that_are_synced_and_accepted() -> None:
    role = leader()
    role.append(0, whole(b"abc"))
    (entry,) = appends(role)
    role.accepted(entry, 2)
    assert role.mark == 0
    role.was_synced(3)
    assert role.mark == 3
    role.append(3, whole(b"de"))
    role.was_synced(5)
    assert role.mark == 3


def test_an_append_that_was_accepted_at_another_number_is_not_confirmed() -> None:
    role = leader()
    role.append(0, whole(b"abc"))
    role.was_synced(3)
    (entry,) = appends(role)
    role.accepted(entry, 9)
    assert actions(role) == [LookAt(2)]
    assert role.mark == 0


def test_a_leader_steps_down_when_another_leaders_entry_has_the_expected_number() -> None:
    role = leader(most=3)
    role.append(0, whole(b"abc", b"def"))
    first, second = appends(role)
    role.accepted(first, 2)
    role.refused(second, 3, 1)
    role.take()
    role.found(3, takeover(2, 3))
    assert role.state is State.FOLLOWER
    assert actions(role) == [Cut(3)]
    role.was_synced(6)  # reported for bytes that are being truncated
    role.was_cut()
    assert role.synced == 0
    role.read(3, takeover(2, 3))
    assert role.leader == OTHER
    assert not role.pending


def test_a_leader_steps_down_when_the_expected_number_was_purged() -> None:
    role = leader()
    role.append(0, whole(b"abc"))
    role.take()
    role.found(2, None)
    assert role.state is State.FOLLOWER


def test_an_idle_leader_looks_at_what_another_server_has_written_and_steps_down_if_it_counts() -> None:
    role = leader()
    role.learned_last(1, 1)
    assert actions(role) == []
    role.learned_last(2, 1)
    assert actions(role) == [LookAt(2)]
    role.found(2, takeover(2, 0))
    assert role.state is State.FOLLOWER
    role.was_cut()
    role.read(2, takeover(2, 0))
    assert role.leader == OTHER


def test_a_leader_renumbers_appends_in_flight_behind_an_entry_that_does_not_count() -> None:
    role = leader()
    role.append(0, whole(b"abc"))
    role.append(3, whole(b"def"))
    first, second = appends(role)
    role.refused(first, 3, 1)
    role.accepted(
        second, 3
    )  # its number fits by accident; behind the entry that does not count, it does not count either
    role.found(2, data(0, 0, b"late"))
    assert actions(role) == [LookAt(2), Append(first, 2, 2)], "alone: what follows would take its place"
    assert (role.state, role.position) == (State.LEADER, 0)
    role.refused(first, 3, 2)
    role.found(3, second)
    assert actions(role) == [LookAt(3), Append(first, 3, 3)]
    role.accepted(first, 4)
    assert actions(role) == [Append(second, 4, 4)]
    role.accepted(second, 5)
    assert (role.applied, role.position, role.pending) == (5, 6, False)


def test_a_candidate_tries_again_behind_an_entry_that_does_not_count() -> None:
    role = follower()
    assert role.take_over(1)
    role.take()
    role.found(2, data(0, 0, b"late"))
    assert actions(role) == [Append(takeover(2, 0, ME, FOUNDED), 2, 2)]
    role.accepted(takeover(2, 0, ME, FOUNDED), 3)
    assert role.state is State.LEADER


MINE, FOREIGN = bytes(15) + b"1", bytes(15) + b"2"


def of(entry: LogEntry, identity: bytes, chain: int, after: int | None = None) -> LogEntry:
    return attrs.evolve(entry, identity=identity, chain=chain, after=chain if after is None else after)


def test_a_server_whose_journal_is_another_one_of_the_same_length_stops() -> None:
    role = Role(ME, 64, identity=MINE, chain=7)
    role.read(1, of(takeover(1, 64), FOREIGN, 7))
    assert role.state is State.STOPPED
    role.noted(64)
    assert role.reported == 0, "nobody may believe that it has the other journal's bytes"


def test_a_server_whose_journal_was_continued_outside_the_cluster_stops() -> None:
    role = Role(ME, 64, identity=MINE, chain=8)
    role.read(1, of(takeover(1, 60), MINE, 5))
    assert role.state is State.FOLLOWER
    role.read(2, of(data(1, 60, b"abcd"), MINE, 5, 7))
    assert role.state is State.STOPPED


def test_a_leader_is_not_stopped_by_a_take_over_for_another_journal() -> None:
    role = Role(ME, 64, identity=MINE, chain=7)
    assert role.take_over(0)
    (entry,) = appends(role)
    assert (entry.identity, entry.chain, entry.after) == (MINE, 7, 7)
    role.accepted(entry, 1)
    role.append(64, [Batches(b"abc", 9)])
    (entry,) = appends(role)
    assert (entry.chain, entry.after) == (7, 9)
    role.found(2, of(takeover(2, 64), FOREIGN, 7))
    assert role.state is State.LEADER
    role.accepted(entry, 3)
    assert (role.position, role.chain) == (67, 9)


def test_an_empty_server_takes_the_identity_of_the_log() -> None:
    role = Role(ME, 0)
    role.read(1, of(takeover(1, 0), bytes(16), 0))
    role.read(2, of(data(1, 0, b"abc"), MINE, 0, 4))
    assert (role.identity, role.chain) == (MINE, 4)
    assert role.state is State.FOLLOWER


def test_no_more_appends_than_the_window_are_under_way() -> None:
    role = leader(window=2, most=1)
    role.append(0, whole(b"a", b"b", b"c"))
    first, _ = appends(role)
    assert role.pending
    role.accepted(first, 2)
    assert [entry.data for entry in appends(role)] == [b"c"]


def test_small_appends_wait_for_the_first_two_and_are_joined() -> None:
    role = leader()
    for position, batch in enumerate([b"a", b"b", b"c", b"d"]):
        role.append(position, whole(batch))
    first, second = appends(role)
    assert (first.data, second.data) == (b"a", b"b")
    role.accepted(first, 2)
    assert appends(role) == [data(1, 2, b"cd", ME)]


def test_large_appends_do_not_wait() -> None:
    role = leader(most=3)
    role.append(0, whole(b"abc", b"def", b"ghi", b"jk"))
    assert [entry.data for entry in appends(role)] == [b"abc", b"def", b"ghi"]


def test_a_checkpoint_goes_first_and_the_beginning_of_a_segment_is_not_joined_with_what_was_before() -> None:
    role = leader()
    segment = SEGMENT_MAGIC + b"s"
    for position, batch in enumerate([b"a", b"b", b"c"]):
        role.append(position, whole(batch))
    role.append(3, whole(segment))
    role.append(3 + len(segment), whole(b"d"))
    role.add_checkpoint()
    role.append(4 + len(segment), whole(b"e"))
    sent = []
    while role.pending:
        sent += [(entry.kind, entry.data) for entry in appends(role)]
        item = role.inflight[0]
        role.accepted(item.entry, item.expect + 1)
    data, checkpoint = EntryKind.DATA, EntryKind.CHECKPOINT
    assert sent == [(data, b"a"), (data, b"b"), (checkpoint, b""), (data, b"c"), (data, segment + b"de")]


def test_a_part_is_not_joined_with_what_follows() -> None:
    role = leader(most=3)
    role.append(0, whole(b"a"))
    role.append(1, whole(b"b"))
    role.append(2, whole(b"cdefg"))
    sent = []
    while role.pending:
        sent += [(entry.data, entry.part) for entry in appends(role)]
        item = role.inflight[0]
        role.accepted(item.entry, item.expect + 1)
    assert sent == [(b"a", False), (b"b", False), (b"cde", True), (b"fg", False)]


def test_writes_that_follow_each_other_are_joined_up_to_the_beginning_of_a_segment() -> None:
    segment = SEGMENT_MAGIC + b"s"
    actions: deque[Action] = deque([Write(1, b"bc"), Write(3, segment), Write(3 + len(segment), b"d")])
    assert Write(0, b"a").take_following(actions) == b"abc"
    assert Write(3, segment).take_following(deque([Write(99, b"elsewhere")])) == segment
    assert list(actions) == [Write(3, segment), Write(3 + len(segment), b"d")]


def test_a_server_stops_when_the_shared_log_has_lost_entries() -> None:
    role = follower(data(1, 0, b"abc"))
    for _ in range(SIGNS - 1):
        role.learned_last(1, 2)
    role.learned_last(2, 2)  # the earlier answers were outdated
    for _ in range(SIGNS):
        assert role.state is State.FOLLOWER
        role.learned_last(1, 2)
    assert role.state is State.STOPPED
    assert not role.take_over(1)


def test_a_server_stops_when_its_journal_is_longer_than_the_shared_log() -> None:
    role = follower(position=10)
    assert not role.take_over(1)
    for _ in range(SIGNS):
        role.learned_last(1, 1)
    (again,) = (action for action in role.take() if isinstance(action, Reopen))
    assert role.state is State.STOPPED
    assert "ends at position 0, and this journal is durable up to 10" in again.reason


@pytest.mark.parametrize(
    ("since", "lost"), [(2, True), (1, False)], ids=["the answer is new", "it was outdated on arrival"]
)
def test_a_leader_stops_when_the_shared_log_has_lost_confirmed_entries(since: int, lost: bool) -> None:
    role = leader()
    role.append(0, whole(b"abc"))
    (entry,) = appends(role)
    for _ in range(SIGNS - 1):
        role.refused(entry, 0, 1)
    role.accepted(entry, 2)  # the answers before were outdated
    role.append(3, whole(b"def"))
    (entry,) = appends(role)
    for _ in range(SIGNS):
        assert role.state is State.LEADER, "the signs follow each other, without an accepted append in between"
        role.refused(entry, 1, since)
    assert role.state is (State.STOPPED if lost else State.LEADER)
    assert bool(role.pending) is not lost, "nobody waits for what can never be accepted"


def test_an_existing_journal_begins_an_empty_shared_log_where_it_ends() -> None:
    role = leader(position=100)
    role.append(100, whole(b"abc"))
    (entry,) = appends(role)
    role.accepted(entry, 2)
    role.was_synced(103)
    assert role.mark == 103
    other = Role(OTHER, 100)
    other.read(1, takeover(1, 100, ME))
    other.read(2, entry)
    assert actions(other) == [Write(100, b"abc")]


def test_a_server_that_ends_before_the_first_entry_is_filled() -> None:
    role = Role(ME, 5)
    first = LogEntry(EntryKind.CHECKPOINT, 3, OTHER, 8)
    role.read(10, first)
    role.read(11, data(3, 8, b"abc"))
    assert actions(role) == [Fill(8)]
    assert not role.take_over(11)
    filled = Role(ME, 8)
    filled.read(10, first)
    filled.read(11, data(3, 8, b"abc"))
    assert actions(filled) == [Write(8, b"abc")]


def test_a_shared_log_that_begins_with_data_is_not_followed() -> None:
    role = Role(ME, 0)
    role.read(7, data(3, 0, b"abc"))
    assert role.state is State.STOPPED


def test_nothing_is_purged_while_the_members_change() -> None:
    role = leader()
    two, three = Members(2, ("me", "b")), Members(3, ("me", "b", "c"))
    role.change_members(two)
    role.accepted(listed(0, two), 2)
    role.add_checkpoint()
    role.accepted(checkpoint(1, 0, two), 3)
    role.noted(0)
    role.change_members(three)
    role.take()
    role.purge({"b": 3})
    assert actions(role) == []
    role.accepted(listed(0, three), 4)
    role.purge({"b": 3}, absent=["c"])
    assert Purge(3) in actions(role)


def test_trimmed_entries_have_to_be_on_two_members() -> None:
    role = Role(ME, 0)
    members = Members(1, ("me", "b", "c"))
    role.read(1, takeover(1, 0, members=members))
    assert role.is_on_two(members, {}), "nothing was trimmed"
    role.read(2, LogEntry(EntryKind.CHECKPOINT, 1, OTHER, 0, members=members))
    assert not role.is_on_two(members, {"b": 2, "c": 1})
    assert role.is_on_two(members, {"b": 2, "c": 2})
    role.noted(0)
    assert role.is_on_two(members, {"b": 2})
    assert not role.is_on_two(Members(1, ("me", "c")), {"b": 2})


def test_only_one_change_of_the_members_is_under_way() -> None:
    role = leader()
    two, three = Members(2, ("me", "b")), Members(3, ("me", "b", "c"))
    assert role.change_members(two)
    assert not role.change_members(three)
    assert appends(role) == [listed(0, two)]
    assert role.members == FOUNDED, "it counts when it is confirmed"
    role.accepted(listed(0, two), 2)
    assert actions(role) == [Listed(two)]
    assert role.members == two
    assert role.change_members(three)
    assert appends(role) == [listed(0, three)]
    assert role.add_checkpoint()
    assert not role.add_checkpoint(), "one at a time, too"
    assert not Role(ME, 0).change_members(FOUNDED), "a follower changes nothing"


def test_a_checkpoint_carries_the_members_that_apply_at_its_number() -> None:
    role = leader()
    two = Members(2, ("me", "b"))
    role.change_members(two)
    role.add_checkpoint()
    assert appends(role) == [listed(0, two), checkpoint(1, 0, two)]


def test_a_change_that_is_not_confirmed_does_not_count_after_a_step_down() -> None:
    role = leader()
    role.change_members(Members(2, ("me", "b")))
    role.take()
    role.found(2, takeover(2, 0, members=FOUNDED))
    role.was_cut()
    role.read(2, takeover(2, 0, members=FOUNDED))
    assert role.members == FOUNDED
    assert role.take_over(2)
    assert [entry.members for entry in appends(role)] == [FOUNDED]


def test_a_change_of_members_is_renumbered_behind_an_entry_that_does_not_count() -> None:
    role = leader()
    two = Members(2, ("me", "b"))
    role.append(0, whole(b"abc"))
    role.change_members(two)
    role.add_checkpoint()
    role.take()
    role.found(2, data(0, 0, b"void"))
    role.accepted(data(1, 0, b"abc", ME), 3)
    assert [(entry.kind, entry.members) for entry in appends(role)] == [
        (EntryKind.DATA, None),
        (EntryKind.MEMBERS, two),
        (EntryKind.CHECKPOINT, two),
    ]


def test_a_server_that_takes_over_takes_a_free_place() -> None:
    role = Role(ME, 0)
    role.read(1, takeover(1, 0, members=Members(1, ("other",), places=1)))
    assert role.admitted
    assert role.take_over(1)
    assert [entry.members for entry in appends(role)] == [Members(2, ("other", "me"))]


def test_a_server_that_is_no_member_stops_when_it_has_applied_all_entries_that_20_answers_have_mentioned() -> None:
    """An answer may be late, and an entry that it does not mention may add this server."""
    ran: Counter[str] = Counter()
    for seed in range(60):
        dice, role, answers = Random(seed), Role(ME, 0), list[int]()
        names, most = ("other", "third"), dice.choice([1, 3])
        role.read(7, LogEntry(EntryKind.CHECKPOINT, 3, OTHER, 0, members=Members(1, names)))
        while role.state is State.FOLLOWER and role.applied < 40:
            if dice.random() < 0.1:
                version, listed = role.members.version + 1, names + ("me",) * (dice.random() < 0.3)
                role.read(role.applied + 1, LogEntry(EntryKind.MEMBERS, 3, OTHER, 0, members=Members(version, listed)))
            if "me" not in role.members.names:
                assert not role.take_over(role.applied), "it is no member"
            last = role.applied + dice.randrange(most)
            stops = len(answers) >= OUTSIDE and max(answers[:OUTSIDE]) <= role.applied
            answers = [] if role.admitted else [*answers, last]
            role.learned_last(last, role.applied)
            assert (role.state is State.STOPPED) == (stops and not role.admitted), f"after the answers {answers}"
            ran["is added"] += role.admitted
            ran["waits for an entry"] += len(answers) > OUTSIDE + 1
        changes = [action.reason for action in role.take() if isinstance(action, Changed)]
        why = "this server, me, is not a member of the cluster, whose members are other and third; run `fyrehose"
        assert [change[: len(why)] for change in changes] == [why] * len(changes)
        ran["stops"] += len(changes)
    assert len(+ran) == 3, f"a branch never ran: {ran}"


def test_a_follower_reports_what_is_on_disk_also_after_a_power_cut() -> None:
    role = follower(data(1, 0, b"abc"), data(1, 3, b"def"))
    role.was_synced(6)
    assert role.reported == 0
    role.noted(3)
    assert role.reported == 2
    role.noted(6)
    assert role.reported == 3


class Unsafe:
    """A leader and a follower around a log that takes appends in any order, and loses some or their answers.

    :ivar entries: the entries of the log
    :ivar sent: the bytes that the leader was given
    :ivar wrote: the bytes that the follower has written
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.leader, self.follower = leader(window=self.dice.choice([1, 3, 8]), most=100), Role(OTHER, 0)
        self.entries = [takeover(1, 0, ME, FOUNDED)]
        self.appends: list[Append] = []
        self.asked: list[int] = []
        self.sent = self.wrote = b""
        self.cut: int | None = None
        self.branches: Counter[str] = Counter()

    def act(self) -> None:
        """Take the actions of both roles."""
        for action in self.leader.take():
            if isinstance(action, Append):
                self.appends.append(action)
            elif isinstance(action, LookAt):
                self.asked.append(action.number)
            elif isinstance(action, Cut):
                assert action.reason.endswith(" has written to the shared log"), "each entry of its own counts"
                self.cut = action.position
            else:
                assert isinstance(action, (Listed, Changed)), f"the leader decides on {action}"
        for action in self.follower.take():
            if isinstance(action, Write):
                assert action.position == len(self.wrote)
                self.wrote += action.data
            else:
                assert isinstance(action, Listed), f"the follower decides on {action}"

    def append(self) -> None:
        sizes = [self.dice.choice([1, 30, 99, 100, 101, 250]) for _ in range(self.dice.randint(1, 3))]
        batches = [self.dice.randbytes(size) for size in sizes]
        self.leader.append(len(self.sent), [Batches(each, self.dice.randrange(1, 1 << 32)) for each in batches])
        self.sent += b"".join(batches)

    def note(self) -> None:
        """Append an entry without data, which goes before the data that waits, but never into a batch."""
        within = bool(self.leader.inflight) and self.leader.inflight[-1].entry.part
        if self.dice.random() < 0.7:
            added = self.leader.add_checkpoint()
        else:
            members = self.leader.members
            added = self.leader.change_members(attrs.evolve(members, version=members.version + 1))
        self.branches["an entry within a batch"] += added and within

    def deliver(self) -> None:
        if not self.appends:
            return
        append = self.appends.pop(self.dice.randrange(len(self.appends)))
        if self.dice.random() < 0.1:
            self.branches["a lost append"] += 1
            return
        if append.expect == len(self.entries):
            self.entries.append(append.entry)
        elif self.entries[append.expect : append.expect + 1] != [append.entry]:
            self.branches["an append out of order"] += 1
            self.leader.refused(append.entry, len(self.entries), append.since)
            return
        if self.dice.random() < 0.1:
            self.branches["a lost answer"] += 1
        else:
            self.leader.accepted(append.entry, append.expect + 1)

    def late(self) -> None:
        """Append an entry of a leader that was deposed, which does not count."""
        self.entries.append(data(0, self.leader.position, b"late", part=self.dice.random() < 0.5))
        self.branches["a late entry"] += 1

    def sync(self) -> None:
        self.leader.was_synced(self.dice.randint(0, len(self.sent)))

    def look(self) -> None:
        if self.asked:
            number = self.asked.pop()
            self.leader.found(number, self.entries[number - 1])

    def read(self) -> None:
        while self.follower.applied < len(self.entries):
            self.follower.read(self.follower.applied + 1, self.entries[self.follower.applied])

    def step(self) -> None:
        often = [self.append, self.append, self.note, self.deliver, self.deliver, self.deliver, self.look, self.read]
        rare = [self.leader.repeat, self.late, self.sync]
        self.dice.choice(often if self.dice.random() < 0.9 else rare)()
        self.act()
        assert (self.leader.state is State.LEADER) == (self.cut is None)
        assert self.cut is None or self.branches["a late entry"], "no other server has written to the log"
        assert self.wrote == self.sent[: len(self.wrote)]
        assert self.leader.position <= len(self.sent)

    def settle(self, until: Callable[[], bool]) -> None:
        """Let everything arrive, until *until* is true or the leader steps down."""
        for _ in range(10_000):
            if until() or self.cut is not None:
                break
            self.leader.repeat()
            self.act()
            for each in (self.deliver, self.look, self.act) * 20:
                each()
        self.read()
        self.act()

    def finish(self) -> None:
        """Let everything arrive; afterwards the follower takes over, or the leader has stepped down already.

        It does so, too, if the log takes an append that was renumbered meanwhile, so that it has another end.
        """
        self.settle(lambda: not self.leader.pending)
        if self.cut is None:
            assert (self.leader.position, self.wrote == self.sent) == (len(self.sent), True), "all is there, once"
            assert self.follower.validity == self.leader.validity
            self.append()
            self.leader.was_synced(len(self.sent))
            end, chain = self.follower.position, self.follower.chain
            self.entries.append(of(takeover(2, end), b"", chain))
            self.entries.append(of(data(2, end, b"of the next"), b"", chain, 7))
            self.settle(lambda: False)
        else:
            self.branches["a step down"] += 1
        assert self.cut == self.leader.position >= self.leader.synced, "nothing behind the cut counts as synced"
        journal = self.sent[: self.cut]
        self.leader.was_cut()
        for number in range(self.leader.applied, len(self.entries)):
            self.leader.read(number + 1, self.entries[number])
        for action in self.leader.take():
            if isinstance(action, Write):
                assert action.position == len(journal)
                journal += action.data
        assert journal == self.wrote, "both have the same bytes"
        assert self.follower.validity == self.leader.validity


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_follower_has_every_byte_of_a_leader_whose_appends_and_answers_are_lost_until_it_takes_over(seed: int) -> None:
    branches: Counter[str] = Counter()
    for each in range(seed, seed + 10):
        pair = Unsafe(each)
        for _ in range(120):
            if pair.cut is None:
                pair.step()
        pair.finish()
        branches += pair.branches
    wanted = (
        "an entry within a batch",
        "a lost append",
        "an append out of order",
        "a lost answer",
        "a late entry",
    )
    assert all(branches[name] for name in wanted), f"a branch never ran: {branches}"
