#!/usr/bin/env python3
"""Simulate servers with a replication role each and one shared log, and everything that may go wrong between them.

    replication.py [--count 1000] [--first 0] [--seed 1] [--steps 400] [--break RULE]

The roles and entries are the real ones (fyrehose/cluster); journals, disks, the shared log and the network are
models.  The shared log accepts an append only if its last number is the expected one.  Requests and answers take any
time, are lost, repeated, or overtake each other; a request that timed out may still arrive.  Servers crash (and keep
what was synced, and any part of the rest), pause for any time, and start again.  Machines are lost, one at a time, with
their disks; one at a time finds another cluster's journal of the same length on its disk.  Each step takes a second,
and each server has a clock of its own.  The leader trims the shared log.  Operators add servers, remove them, and
replace lost ones; sometimes they declare one lost.  Checked after every step:

    A  an acknowledged byte is in the shared log, or was when it was trimmed
    B  a journal agrees with the valid entries, up to its durable mark
    C  what is released (acknowledged or delivered) agrees with the valid entries
    D  no server truncates its journal below its durable mark
    E  an acknowledged byte is in the untrimmed shared log, or synced on two servers; on one while the replacement of a
       lost machine is not filled
    F  a server with another cluster's journal stops, and no other server does
    G  a leader steps down only for a valid entry
    H  when all faults have ended, a server leads and acknowledges within a bounded number of steps
    I  trimmed entries were synced by every server that is a member for the leader, unless it was declared lost
    J  the members change one at a time, and a server that has applied an entry knows the members at that entry
    K  only a member takes over, and a server stops as a non-member only if it is none at the entry that it has applied
    L  when all faults have ended, the shared log is trimmed, and removed servers have stopped
    M  what a server believes to be complete up to a time of its own clock has everything that was acknowledged before
    O  a leader that can write nothing more hands over to a server that can, within a bounded number of steps
    N  a server that takes over has replayed its state, but for a few bytes

``--break`` removes one rule, and the exit status must then be 1.  Prints a line for each violation, with the number of
its schedule: repeat it with --first NUMBER --count 1.  The exit status is 1, too, if something that is counted never
happened.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import inf
from typing import Any

import attrs
import schedules
from crc32c import crc32c

from fyrehose.cluster.appends import Appends
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry, Piece, Validity
from fyrehose.cluster.leader_watch import LeaderWatch
from fyrehose.cluster.members import LEAST, Members
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import Append, Changed, Compare, Cut, Fill, LookAt, Purge, Role, State, Write
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.journal.exchange import Batches

#: The largest data of an entry, in bytes; batches have 1 to 12 bytes, so that many are divided.
MOST = 5


class Violation(Exception):
    """An invariant does not hold."""


class CountsVoid(Validity):
    """Without rule 1: every entry counts, also a void one."""

    def counts(self, entry: LogEntry) -> bool:
        super().counts(entry)
        self.epoch = max(self.epoch, entry.epoch)
        self.end = self.reached = entry.end
        return True


class OrderBlind(Role):
    """Without rule 2: an append is confirmed although the outcome of the one before it is unknown."""

    def _confirm(self) -> None:
        known = [at for at, item in enumerate(self.inflight) if item.known]
        for at in range(max(known, default=0)):
            self.inflight[at].known = True
        super()._confirm()


class Forgetful(Role):
    """Without rule 3: an append without an answer is given up, and another one takes its place."""

    def repeat(self) -> None:
        if self.state is State.LEADER and self.inflight and not self.inflight[0].known:
            item = self.inflight.popleft()
            if item.entry.kind is EntryKind.DATA:
                self.position = max(self.position, item.entry.end)
        super().repeat()


class Stubborn(Role):
    """Without rule 5: a deposed leader keeps what was not confirmed."""

    def _step_down(self, reason: str) -> None:
        self.position = max(self.position, self._end)
        super()._step_down(reason)


class Together(Role):
    """Without rule 17: all appends in flight are sent again behind a void entry."""

    def _skip(self, number: int) -> None:
        self.applied = number
        for at, item in enumerate(self.inflight):
            item.expect, item.known = number + at, False
            self._actions.append(Append(item.entry, item.expect, number))


class CountsForeign(Validity):
    """Without the first half of rule 11: entries of another cluster's journal count."""

    def counts(self, entry: LogEntry) -> bool:
        return super().counts(attrs.evolve(entry, identity=self.identity, chain=self.chain))


class TrimsForAnybody(Role):
    """Without rule 18: servers that are no members confirm trimmed entries, and members are not asked."""

    def purge(self, reported: Mapping[str, int], absent: Collection[str] = ()) -> None:
        members, heard = self.members, {name: number for name, number in reported.items() if number}
        if members is not None:
            self.validity.members = attrs.evolve(members, names=(self.writer.name, *heard))
            super().purge(reported, absent)
            self.validity.members = members


class ListsAtOnce(Role):
    """Without rule 18: the leader trims for members that the shared log does not have yet."""

    trims = False

    def purge(self, reported: Mapping[str, int], absent: Collection[str] = ()) -> None:
        members, self.validity.members = self.members, self._listed or self.members
        self.trims = True
        super().purge(reported, absent)
        self.validity.members, self.trims = members, False

    @property
    def changes_members(self) -> bool:
        return super().changes_members and not self.trims


class ForgetsMembers(Role):
    """Without rule 18: checkpoints do not contain the members."""

    def _send(self, piece: Piece, epoch: int = 0) -> None:
        super()._send(piece, epoch)
        if piece.kind is EntryKind.CHECKPOINT:
            self.inflight[-1].entry = entry = attrs.evolve(self.inflight[-1].entry, members=None)
            self._actions[-1] = attrs.evolve(self._actions[-1], entry=entry)


class WaitsForRemoved(Role):
    """Without rule 18: the shared log is kept for servers that were removed."""

    known: frozenset[str] = frozenset()

    def _counts(self, entry: LogEntry) -> bool:
        counts = super()._counts(entry)
        self.known |= {*self.members.names}
        return counts

    def _copied(self, others: Any, number: int) -> bool:
        return super()._copied(others, number) and len(others) + 1 >= len(self.known)


class AgesByArrival(LeaderWatch):
    """Without rule 16: a message of the leader counts as of its arrival, so its way is no part of the age."""

    def hear(self, peer: ClusterPeer) -> None:
        answer = {str(self.peers.incarnation): peer.heard} if peer.answer_to(self.peers.writer) < inf else None
        super().hear(attrs.evolve(peer, identity=peer.identity.hex(), current=answer))


class AgesWithoutEntries(LeaderWatch):
    """Without rule 16: an answer of the leader counts before the entries that it mentions are applied."""

    def hear(self, peer: ClusterPeer) -> None:
        super().hear(attrs.evolve(peer, identity=peer.identity.hex(), applied=0))


class ConfirmsBlindly(Appends):
    """Without rule 16: any answer of the shared log shows that no other server leads."""

    def looked(self, role: Role, asked: float, last: int) -> None:
        super().looked(role, asked, role.applied)


class ConfirmsUnordered(Appends):
    """Without rule 16: an accepted append shows that no other server leads, although earlier ones are unknown."""

    def settle(self, role: Role) -> None:
        known = [self._sent.get(item.entry.ident, -inf) for item in role.inflight if item.known]
        super().settle(role)
        self.confirmed = max(self.confirmed, *known, -inf)


def without(**changed: Any) -> type[Role]:
    """Return a role that differs from the real one in the methods and properties *changed*."""
    return type("Role", (Role,), changed)


def _takes_over_blindly(role: Role, last: int) -> bool:
    role.applied = max(role.applied, last)
    return role.state is State.FOLLOWER and not role._waiting


def _takes_over_unready(role: Role, last: int) -> bool:
    role.ready = lambda: True
    return Role._may_take_over(role, last)


def _steps_down_for_void(role: Role, number: int) -> None:
    role._step_down("another server has written to the shared log")


ROLES: dict[str, type[Role]] = {
    "order-blind": OrderBlind,
    "give-up": Forgetful,
    # Rule 4: a server takes over before it has applied all entries.
    "blind-takeover": without(_may_take_over=_takes_over_blindly),
    "no-step-down": Stubborn,
    # Rule 6: what is synced on the leader's disk is acknowledged, or what the shared log has.
    "ack-local": without(mark=property(lambda role: role.synced)),
    "ack-remote": without(mark=property(lambda role: role.position)),
    # Rule 9: the leader trims entries that no other server has.
    "trim-alone": without(_copied=lambda role, others, number: True),
    # Rule 14: a leader steps down for a void entry.
    "depose-by-void": without(_skip=_steps_down_for_void),
    "number-together": Together,
    # Rule 11: a server follows another cluster's journal, whose entries count (CountsForeign).
    "trust-position": without(_is_of_this_journal=lambda role: True),
    "trim-for-anybody": TrimsForAnybody,
    "list-at-once": ListsAtOnce,
    # Rule 18: a change of the members begins while another one is under way.
    "change-together": without(changes_members=property(lambda role: False)),
    "forget-members": ForgetsMembers,
    # Rule 18: a removed server takes over, and does not stop.
    "lead-outside": without(admitted=property(lambda role: True)),
    "wait-for-removed": WaitsForRemoved,
    # Rule 18: a server is removed that has one of only two copies.
    "let-last-copy-go": without(is_on_two=lambda role, members, reported: True),
    # Rule 19: a server takes over before it has replayed its state, and would be silent for long.
    "lead-unready": without(_may_take_over=_takes_over_unready),
}
#: Rules of validity that can be removed.
VALIDITIES: dict[str, type[Validity]] = {"count-void": CountsVoid, "trust-position": CountsForeign}
#: Rules about ages that can be removed: what a follower, or a leader, takes for a proof.
WATCHES = {"age-by-arrival": AgesByArrival, "age-without-entries": AgesWithoutEntries}
PROOFS = {"confirm-blindly": ConfirmsBlindly, "confirm-unordered": ConfirmsUnordered}
#: How many steps may pass after the last fault until a message is acknowledged, and then until all is trimmed.
CALM = 2000
#: A server with at most this many bytes of its state to replay may take over.
FEW = 6
#: How many servers run at once at most, and how many a cluster has at first.
MOST_SERVERS, FIRST = 5, 3
#: The identities of the cluster's journal, and of another one.
MINE, FOREIGN = b"m" * 16, b"f" * 16
#: Rules that are removed elsewhere than in a role.
ELSEWHERE = ("keep-the-lead", "count-void", "no-truncate", "mark-local", "trim-anywhere", "copy-unconfirmed")
RULES = (*ROLES, *ELSEWHERE, *WATCHES, *PROOFS)
#: What must have happened in some schedule: see World.ran.
BRANCHES = ("bytes acknowledged", "take-overs", "starts", "void entries", "entries trimmed", "changes of the members")


class World:
    """The shared log, the network, and the servers of one schedule."""

    def __init__(self, rnd: random.Random, broken: str | None = None, servers: int = 3) -> None:
        self.rnd, self.broken = rnd, broken
        #: Draws of its own for messages and clocks, so that these change no schedule of everything else.
        self.chance = random.Random(repr(rnd.getstate()))
        self.now = 0
        self.acked_at: list[tuple[int, int]] = [(0, 0)]  #: (step, bytes that were acknowledged then)
        self.said: list[tuple[Server, int, Callable[..., None], Any]] = []  #: messages that have not arrived yet
        self.log: list[LogEntry] = []
        self.base = 0  #: entries before it were purged
        self.truth = bytearray()  #: the bytes that count
        self.ends: list[int] = []  #: how many of them there were in front of each entry
        self.lists: list[Members | None] = []  #: the members behind each entry
        self.counted: list[bool] = []  #: whether each entry counts
        self.validity, self.parts = Validity(), b""
        self.acked = 0  #: bytes below this position were acknowledged
        self.net: list[tuple[Callable[..., None], Server, int, tuple[Any, ...]]] = []
        self.is_calm = False
        #: How many of the remaining members have the trimmed bytes when a leader removes a live member.
        self.copies_left: dict[tuple[EntryWriter, int], int] = {}
        self.messages = 0
        self.ran: Counter[str] = Counter()
        self.made = servers
        self.servers = [Server(self, i) for i in range(servers)]

    def step(self) -> None:
        self.now += 1
        self.talk()
        luck, server = self.rnd.random(), self.rnd.choice(self.servers)
        if self.net and luck < 0.45:
            at = self.rnd.randrange(len(self.net))
            # otherwise the packet arrives again later
            packet = self.net[at] if self.rnd.random() < 0.05 else self.net.pop(at)
            self.arrive(*packet)
        elif self.net and luck < 0.48:
            self.net.pop(self.rnd.randrange(len(self.net)))
        elif (luck := self.rnd.random()) < (0.01 if server.up else 0.1):
            server.crash()
        elif luck < (0.1 if server.paused else 0.02):
            server.paused = not server.paused
        elif 0.1 < luck < 0.104 and self.whole():
            server.lose()
        elif 0.104 < luck < 0.108 and self.whole():
            server.swap()
        elif 0.108 < luck < 0.112:
            self.wish()
        else:
            server.turn()
        self.check()

    def talk(self) -> None:
        """Let one server speak and some messages arrive: late, repeatedly, in any order, or never."""
        speaker = self.chance.choice(self.servers)
        if speaker.up and not speaker.paused:
            speaker.speak()
        for _ in range(self.chance.randint(0, 6)):
            if not self.said:
                break
            at = self.chance.randrange(len(self.said))
            to, incarnation, call, what = self.said[at] if self.chance.random() < 0.1 else self.said.pop(at)
            if to.incarnation == incarnation and to.up and not to.paused:
                call(what)
        del self.said[:-60]
        for server in self.servers:
            server.judge_age()

    def send(self, to: Callable[..., None], server: Server, *what: Any) -> None:
        self.net.append((to, server, server.incarnation, what))

    def arrive(self, to: Callable[..., None], server: Server, incarnation: int, what: tuple[Any, ...]) -> None:
        if to == self.request:
            to(server, incarnation, *what)
        elif server.incarnation == incarnation and server.up:
            if server.paused:
                self.net.append((to, server, incarnation, what))
            else:
                to(*what)
                server.perform()

    def request(self, server: Server, incarnation: int, entry: LogEntry, expect: int, since: int) -> None:
        """Append *entry* if the last number is *expect*; the answer may be lost."""
        role = server.role
        if len(self.log) == expect:
            self.grow(entry)
            self.net.append((role.accepted, server, incarnation, (entry, len(self.log))))
        else:
            self.net.append((role.refused, server, incarnation, (entry, len(self.log), since)))

    def grow(self, entry: LogEntry) -> None:
        self.ends.append(len(self.truth))
        self.log.append(entry)
        if len(self.log) == 1:
            self.validity.begin(entry)
        before = self.validity.members
        counts = self.validity.counts(entry)
        self.counted.append(counts)
        self.lists.append(self.validity.members)
        if counts:
            self.judge_members(entry, before)
        if not counts:
            self.ran["void entries"] += 1
        elif entry.kind is not EntryKind.DATA:
            self.parts = b""
        else:
            self.parts += entry.data
            if not entry.part:
                self.truth += self.parts
                self.parts = b""

    def judge_members(self, entry: LogEntry, before: Members | None) -> None:
        """Check a valid entry against the members *before* it."""
        after, name = self.validity.members, entry.writer.name
        if before is not None and after != before:
            self.ran["changes of the members"] += 1
            left = self.copies_left.get((entry.writer, after.version if after else 0), LEAST)
            if left < LEAST:
                raise Violation(f"E: a server is removed, but only {left} of the remaining ones have what was trimmed")
            if after is None or after.version != before.version + 1:
                raise Violation(f"J: {after} follows {before}, but the server that made the change did not know these")
        if entry.kind is EntryKind.TAKEOVER and before is not None and not before.admits(name):
            raise Violation(f"K: server {name} takes over, but the members are {before}")

    @property
    def members(self) -> Members:
        """Return the members according to the whole shared log."""
        return self.validity.members or Members(0, (), FIRST)

    @property
    def listed(self) -> list[Server]:
        """Return the servers that are members; all servers before the first list of members."""
        names = self.members.names
        return [server for server in self.servers if server.name in names or not names]

    def left(self) -> int:
        """Return the position of the first entry that was not trimmed."""
        return self.ends[self.base] if self.base < len(self.ends) else len(self.truth)

    def copies(self, end: int, names: Collection[str] | None = None) -> int:
        """Return how many servers have synced everything below *end*.

        :param names: the servers to count; None means the members
        """
        servers = self.listed if names is None else [server for server in self.servers if server.name in names]
        return sum(server.synced >= end and server.disk[:end] == self.truth[:end] for server in servers)

    def whole(self) -> bool:
        """Return whether another machine may be lost: every server has what was trimmed from the shared log."""
        names = self.members.names
        return self.copies(min(self.left(), self.acked)) == max(len(names), len(self.listed))

    def wish(self) -> None:
        """Let an operator decide to add a server, or to remove one."""
        removed = [server for server in self.listed if not server.unwanted]
        if self.rnd.random() < 0.5 and len(self.servers) < MOST_SERVERS and self.made < 9:
            self.servers.append(Server(self, self.made))
            self.made += 1
        elif len(removed) > LEAST:
            self.rnd.choice(removed).unwanted = True

    def operate(self, leader: Role) -> None:
        """Ask *leader* for one of the wanted changes of members, even if another one is under way."""
        members = leader.members
        if members is None:
            return
        names = {server.name for server in self.servers}
        gone = [name for name in members.names if name not in names]
        new = [server.name for server in self.servers if not server.unwanted and server.name not in members.names]
        unwanted = [s.name for s in self.servers if s.unwanted and s.name in members.names]
        if gone and new and self.rnd.random() < 0.5:
            leader.change_members(members.replaced(gone[0], new[0]))
        elif new:
            leader.change_members(members.added(self.rnd.choice(new)))
        elif (gone or unwanted) and len(members.names) > LEAST:
            after = members.removed((gone or unwanted)[0])
            if (gone or leader.is_on_two(after, self.reported())) and leader.change_members(after) and not gone:
                self.copies_left[leader.writer, after.version] = self.copies(min(self.left(), self.acked), after.names)
        elif members.places:
            leader.change_members(members.closed())

    def reported(self) -> dict[str, int]:
        """Return the last entry that each server has reported as completely on disk."""
        return {server.name: server.role.reported for server in self.servers}

    def judge_purge(self, leader: Server, number: int, absent: Collection[str]) -> None:
        """Check that every member has the entries that *leader* trims, except the *absent* ones."""
        end, members = self.ends[number - 1], self.lists[leader.role.applied - 1]
        for name in () if members is None else members.names:
            has = any(s.name == name and s.synced >= end and s.disk[:end] == self.truth[:end] for s in self.servers)
            if name not in absent and not has:
                raise Violation(f"I: server {name} is a member, but lacks some of the {end} bytes that are trimmed")

    def release(self, server: Server, start: int, end: int) -> None:
        if server.disk[start:end] != self.truth[start:end]:
            raise Violation(f"C: server {server.ident} releases {start}..{end}, which differs from the valid entries")
        if server.role.state is State.LEADER:
            self.acked = max(self.acked, end)
            self.acked_at.append((self.now, self.acked))

    def check(self) -> None:
        enough = 1 if any(server.lost or server.foreign for server in self.servers) else 2
        gone = min(self.left(), self.acked)
        if gone and self.copies(gone) < enough:
            raise Violation(f"E: {gone} bytes are trimmed, but synced on {self.copies(gone)} servers")

    def hears_leader(self) -> bool:
        """Return whether followers hear a leader and do not take over; during faults they never do."""
        leading = [server for server in self.servers if server.role.state in (State.LEADER, State.CANDIDATE)]
        return self.is_calm and any(not server.leaving for server in leading)

    def calm(self) -> None:
        """End all faults; check that a message is acknowledged, and the log trimmed, within CALM steps each."""
        for server in self.servers:
            server.paused = False
        before, self.is_calm = self.acked, True
        self.go_on(lambda: self.acked > before, "H: nothing is acknowledged")
        number = len(self.log)
        self.go_on(lambda: self.base >= number, "L: the shared log is not trimmed")
        self.go_on(
            lambda: all(server.name in self.members.names for server in self.servers),
            "L: servers that are no members still run",
        )
        self.go_on(lambda: self.leader() is not None, "H: no server leads")
        full = self.leader()
        assert full is not None
        full.full = True
        self.go_on(lambda: self.leader() not in (None, full), "O: the lead stays at a server that can write nothing")
        before = self.acked
        self.go_on(lambda: self.acked > before, "O: nothing is acknowledged after the lead has moved")

    def leader(self) -> Server | None:
        """Return the server that leads, as far as the servers know; None if none or several do."""
        leading = [server for server in self.servers if server.up and server.role.state is State.LEADER]
        return leading[0] if len(leading) == 1 else None

    def go_on(self, until: Callable[[], bool], problem: str) -> None:
        for _ in range(CALM):
            if until():
                return
            for server in self.servers:
                if not server.up:
                    server.start()
            if self.net:
                self.arrive(*self.net.pop(0))
            self.rnd.choice(self.servers).turn()
            self.check()
        raise Violation(f"{problem} {CALM} steps after the last fault; the members are {self.members}")

    def finish(self) -> None:
        """Check every journal as a whole."""
        for server in self.servers:
            role = server.role
            if not server.foreign and server.disk[: server.mark] != self.truth[: server.mark]:
                raise Violation(f"B: server {server.ident} differs below its mark")
            if role.applied and not server.foreign and role.members != self.lists[role.applied - 1]:
                raise Violation(f"J: {server.name} believes that the members are {role.members}")
        if self.acked > len(self.truth):
            raise Violation(f"A: {self.acked} bytes were acknowledged, but {len(self.truth)} are valid")


class Server:
    """A simulated server: a journal on a disk, and a role."""

    def __init__(self, world: World, ident: int) -> None:
        self.world, self.ident, self.name = world, ident, f"s{ident}"
        self.incarnation = 0
        self.disk = bytearray()
        self.synced = 0  #: on disk for certain
        self.mark_disk = 0  #: the durable mark that was written
        self.up, self.paused, self.lost = True, False, False
        self.full = False  #: whether its disk is full
        self.unwanted = False  #: whether an operator removes it
        self.absent: list[str] = []  #: the members that the operator has written off
        self.foreign = False  #: whether it has another cluster's journal
        self.start()

    def start(self) -> None:
        world = self.world
        self.incarnation += 1
        world.ran["starts"] += 1
        if world.broken != "no-truncate":
            del self.disk[self.mark_disk :]
        self.synced = min(self.synced, len(self.disk))
        self.mark = self.mark_disk
        validity = VALIDITIES.get(world.broken or "", Validity)()
        kind = ROLES.get(world.broken or "", Role)
        self.absent = []
        begin = len(self.disk) if world.broken == "no-truncate" else self.mark_disk
        writer, chain = EntryWriter(self.name, self.incarnation), crc32c(self.disk[:begin])
        identity = FOREIGN if self.foreign else MINE
        self.role = kind(
            writer, begin, window=3, most=MOST, validity=validity, identity=identity, chain=chain, size=FIRST
        )
        self.role.eager = world.rnd.choice((1, 2, 3))
        self.replayed = max(0, begin - 5 * FEW)  #: the state is up to date with the journal up to here
        self.role.ready = self.is_ready
        self.behind = world.chance.randint(-500, 500)  #: what the clock of this start differs by
        self.peers = Peers(ReplicationSettings(name=self.name), world.ran["starts"])
        self.watch = WATCHES.get(world.broken or "", LeaderWatch)(self.peers)
        self.proofs = PROOFS.get(world.broken or "", Appends)(self.seconds, None, None)
        self.cutting: int | None = None
        self.filling = False
        self.leaving = False  #: whether this leader has told the others to take over
        self.up = True

    def is_ready(self) -> bool:
        """Return whether this server could accept messages at once if it led."""
        return len(self.disk) - self.replayed <= FEW

    def seconds(self) -> float:
        """Return the time of this server's own clock."""
        return float(self.world.now - self.behind)

    def speak(self) -> None:
        """Send this server's message to all others; as a leader, also ask the shared log for its last number."""
        world = self.world
        self.proofs.settle(self.role)
        message = self.peers.pack(self.role, False, confirmed=self.proofs.confirmed, now=self.seconds())
        world.said += [(each, each.incarnation, each.hear, message) for each in world.servers if each is not self]
        if self.role.state is State.LEADER and world.chance.random() < 0.5:
            asked, incarnation = self.seconds(), self.incarnation
            answer = partial(world.said.append, (self, incarnation, partial(self.looked, asked), len(world.log)))
            world.said.append((self, incarnation, lambda _: answer(), None))

    def looked(self, asked: float, last: int) -> None:
        self.proofs.looked(self.role, asked, last)

    def hear(self, message: bytes) -> None:
        peer = self.peers.hear(message, self.seconds(), self.role)
        if peer is not None and peer.leads and peer.epoch >= self.role.validity.epoch:
            self.watch.hear(peer)

    def judge_age(self) -> None:
        """Check that this server has everything that was acknowledged before the time up to which it believes so."""
        if not self.up or self.paused or self.foreign:
            return
        self.watch.applied(self.role)
        self.proofs.settle(self.role)
        current = max(self.watch.current, self.proofs.confirmed) + self.behind
        must = max((acked for at, acked in self.world.acked_at if at < current), default=0)
        if self.mark < must:
            age = self.world.now - current
            raise Violation(f"M: {self.name} believes to be {age:.0f} old, but lacks {must - self.mark} bytes")

    def crash(self) -> None:
        if self.up:
            del self.disk[self.world.rnd.randint(self.synced, len(self.disk)) :]
            self.up = self.paused = False
        else:
            self.start()

    def lose(self) -> None:
        """Lose the machine with its disk; a machine with another name takes its place."""
        self.disk.clear()
        self.synced = self.mark_disk = 0
        self.lost, self.paused, self.unwanted = True, False, False
        self.name += "x"
        self.start()

    def swap(self) -> None:
        """Replace the journal by another cluster's journal that ends at the same position."""
        if self.mark_disk:
            self.disk = bytearray(b"#" * self.mark_disk)
            self.synced = self.mark_disk
            self.foreign, self.paused = True, False
            self.name += "x"
            self.start()

    def turn(self) -> None:
        if not self.up or self.paused:
            return
        luck = self.world.rnd.random()
        part = len(self.disk) if self.role.state is State.LEADER else self.replayed + self.world.chance.randint(0, 3)
        self.replayed = min(part, len(self.disk))
        if luck < 0.25:
            self.sync()
        elif self.cutting is not None:
            self.cut()
        elif self.role.state is State.LEADER:
            self.lead(luck)
        elif luck < 0.85 or self.world.rnd.random() < 0.7 or self.world.hears_leader() or self.full:
            self.follow()
        else:
            world = self.world
            last = max(len(world.log), world.base)
            leads = self.role.take_over(last if world.rnd.random() < 0.8 else world.rnd.randint(0, last))
            if leads and not self.is_ready():
                lacks = len(self.disk) - self.replayed
                raise Violation(f"N: {self.name} takes over, and has {lacks} bytes of its state to replay")
        self.perform()

    def sync(self) -> None:
        self.synced = len(self.disk)
        self.role.was_synced(self.synced)
        self.advance()
        self.role.noted(self.mark_disk)
        if self.lost and self.world.whole():
            self.lost = False

    def lead(self, luck: float) -> None:
        world = self.world
        if self.full:
            self.leaving = not self.role.pending and world.broken != "keep-the-lead"
            self.role.repeat()
            self.role.learned_last(len(world.log), self.role.applied)
        elif luck < 0.55:
            if not self.role.admitted:  # the server was removed
                self.leave()
            elif sum(1 for _ in self.role.inflight) < 3:
                world.messages += 1
                data = (b"<%d>" % world.messages) * world.rnd.randint(1, 3)
                position = len(self.disk)
                self.disk += data
                self.role.append(position, [Batches(data, crc32c(self.disk))])
        elif luck < 0.6:
            self.trim()
        elif luck < 0.65:
            world.operate(self.role)
        elif luck < 0.8:
            self.role.repeat()
        elif luck < 0.82:
            self.role.learned_last(len(world.log), self.role.applied)

    def trim(self) -> None:
        world, members = self.world, self.role.members
        self.role.add_checkpoint()
        if members is None or (members.places and world.rnd.random() < 0.9):
            return
        reported, checkpoint = world.reported(), next(iter(self.role.checkpoints), 0)
        self.absent = []
        if (
            not world.is_calm and world.rnd.random() < 0.2
        ):  # the log is too large, so that slow members are not waited for
            self.absent = [name for name in members.names if reported.get(name, 0) < checkpoint]
        self.role.purge(reported, self.absent)
        if self.absent and world.rnd.random() < 0.5:  # and sometimes a member that has everything is removed
            for server in world.listed:
                server.unwanted = server.unwanted or (server is not self and server.name not in self.absent)
            world.operate(self.role)

    def leave(self) -> None:
        """Stop a leader that was removed, once the outcome of all its appends is known."""
        if not self.role.pending:
            self.end("removed")

    def end(self, reason: str) -> None:
        """Stop as a server that is no member; it starts again if an operator wants it."""
        members = self.world.lists[self.role.applied - 1]
        if members is None or members.admits(self.name):
            raise Violation(f"K: {self.name} stops, but the members are {members}: {reason}")
        self.up = self.paused = False
        if self.unwanted:
            self.world.servers.remove(self)

    def follow(self) -> None:
        """Read the next entries of the shared log."""
        world, role = self.world, self.role
        if self.filling:
            self.copy()
        elif role.state is State.CANDIDATE:
            role.repeat()
        else:
            first = max(role.applied, world.base)
            for number, entry in enumerate(world.log[first : first + world.rnd.randint(1, 4)], first + 1):
                role.read(number, entry)
            role.learned_last(len(world.log), role.applied)

    def copy(self) -> None:
        """Copy the durable part of another server's journal, if it is longer."""
        other = self.world.rnd.choice(self.world.servers)
        if other is self or not other.up or other.foreign:
            return
        durable = len(other.disk) if self.world.broken == "copy-unconfirmed" else other.mark_disk
        if durable > len(self.disk):
            self.disk = other.disk[:durable]
            self.synced = self.mark_disk = durable
        self.start()

    def cut(self) -> None:
        assert self.cutting is not None
        position, self.cutting = self.cutting, None
        if self.world.broken != "no-truncate":
            if position < max(self.mark, self.mark_disk):
                raise Violation(f"D: server {self.ident} truncates at {position}, below its mark {self.mark}")
            del self.disk[position:]
            self.synced = min(self.synced, position)
        self.role.was_cut()

    def perform(self) -> None:
        world, role = self.world, self.role
        for action in role.take():
            match action:
                case Append(entry, expect, since):
                    self.proofs.note_sent(entry)
                    world.send(world.request, self, entry, expect, since)
                case LookAt(number):
                    there = world.base < number <= len(world.log)
                    world.send(role.found, self, number, world.log[number - 1] if there else None)
                case Write(position, data):
                    self.write(position, data)
                case Compare(position, data):
                    if self.disk[position : position + len(data)] != data and not self.foreign:
                        raise Violation(f"B: server {self.ident} differs from the shared log at {position}")
                case Cut(position):
                    self.cutting = position
                case Fill():
                    self.filling = True
                case Purge(number):
                    self.purge(number)
                case Changed(state, reason):
                    self.changed(state, reason)
        self.advance()

    def changed(self, state: State, reason: str) -> None:
        world, applied = self.world, self.role.applied
        if state is State.STOPPED and self.foreign:
            self.foreign = False
            self.lose()  # an operator empties the disk, and it is filled again
        elif state is State.STOPPED and "not a member" in reason:
            self.end(reason)
        elif state is State.STOPPED:
            raise Violation(f"F: server {self.ident} stops: {reason}")
        elif state is State.FOLLOWER and not any(world.counted[applied:]):
            raise Violation(f"G: server {self.ident} steps down: {reason}")

    def write(self, position: int, data: bytes) -> None:
        if position != len(self.disk):
            raise Violation(
                f"B: server {self.ident} ends at {len(self.disk)}, but the shared log continues at {position}"
            )
        self.disk += data

    def purge(self, number: int) -> None:
        self.world.judge_purge(self, number, self.absent)
        base = number - 1
        if self.world.broken == "trim-anywhere":  # any entry may become the first, even a void one
            reader = Validity()
            for at, entry in enumerate(self.world.log[:number]):
                if at == 0:
                    reader.begin(entry)
                if not reader.counts(entry) and at >= self.world.base:
                    base = at
        self.world.base = max(self.world.base, base)

    def advance(self) -> None:
        """Release what is synced here and accepted by the shared log; this is the only place that releases."""
        if self.foreign:
            if self.role.state is State.LEADER:
                raise Violation(f"F: server {self.ident} leads with another cluster's journal")
            return
        mark = self.role.mark
        if mark > self.mark:
            self.world.release(self, self.mark, mark)
            self.mark = mark
        if self.world.broken == "mark-local":
            self.mark_disk = self.synced
        else:
            self.mark_disk = max(self.mark_disk, min(self.mark, self.synced))


def schedule(seed: str, steps: int, broken: str | None = None) -> tuple[World, str]:
    """Run one schedule; return the world at its end, and the violation, or ""."""
    world = World(random.Random(seed), broken)
    try:
        for _ in range(steps):
            world.step()
        world.finish()
        world.calm()
    except (Violation, AssertionError) as violation:
        return world, str(violation) or repr(violation)
    finally:
        takeovers = sum(entry.kind is EntryKind.TAKEOVER for entry in world.log)
        world.ran.update({"bytes acknowledged": world.acked, "take-overs": takeovers, "entries trimmed": world.base})
    return world, ""


if __name__ == "__main__":
    raise SystemExit(schedules.main(__doc__, schedule, 400, RULES, BRANCHES))
