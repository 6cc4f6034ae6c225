"""One server of a cluster, which carries out the actions that its role decides on its journal and on the shared log.

the shared log -> Role -> actions, in order -> the journal, the shared log
the journal (what the leader commits) -> Role -> the shared log -> release
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.cluster.entries import EntryWriter, LogEntry
from fyrehose.cluster.filling import too_far_behind, waits
from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.membership import Membership
from fyrehose.cluster.overview import Growth, packed, seen_by_follower, seen_by_leader
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import (
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
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.shared_log import ISharedLog, Refused, Unavailable
from fyrehose.cluster.trimming import Trimmer
from fyrehose.errors import ConfigError
from fyrehose.journal.exchange import Batches
from fyrehose.journal.format import Damage
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.writer import NoRoom
from fyrehose.observe.meters import ClusterStatus, MemberStatus, NatsStatus
from fyrehose.standing import ServerRole, Standing

log = Logger()

#: How often the state is checked, and sent to the other servers, in seconds.
INTERVAL = 0.25
#: How many entries are read at once.
READ = 64
#: How long the leader collects new entries before it notifies the followers of them, in seconds.
ANNOUNCE = 0.005
#: How long the leader waits for the shared log before it refuses messages, in seconds.
QUIET = 5.0
#: After how many seconds of silence a follower asks NATS whether the leader's process is still connected.
ASK = 0.5
#: After how many seconds of silence a follower takes over if the leader's process is not connected.  A leader that has
#: lost its NATS server reaches another one sooner.
GONE = 1.0
#: Two servers seldom take over at the same time, because each waits up to this much longer, in seconds.
SPREAD = 0.25
#: How much the clocks of two servers may differ in speed, as a fraction.
DRIFT = 0.01
#: How many warnings about the shared log are remembered, so that each is logged once.
REASONS = 10
#: How long an orderly stop waits for the shared log, in seconds; the whole stop takes at most five seconds.
PATIENCE = 3.0


@attrs.define(eq=False)
class Member:
    """This server as a member of its cluster.

    :ivar reactor: runs timers, and is the clock
    :ivar peers: the other servers that have sent messages
    :ivar on_reopen: called with the reason when the journal has to be closed and opened again: another server has taken
        over from this one, the journal has to be filled, or the shared log has lost entries
    :ivar on_removed: called with the reason when this server stops taking part, because it is not a member any more
    :ivar can_fill: whether a journal that is too far behind is filled when it is opened
    :ivar jitter: a random number from 0 to 1, so that two servers rarely try to take over together
    :ivar takeovers: how often this server has become the leader
    """

    reactor: Any
    journal: FileJournal
    gate: ReplicatedGate
    log: ISharedLog
    settings: ReplicationSettings
    incarnation: int
    on_reopen: Callable[[str], object] = lambda reason: None
    on_removed: Callable[[str], object] = lambda reason: None
    can_fill: bool = False
    jitter: float = 0.0
    role: Role = attrs.field(init=False)
    peers: Peers = attrs.field(init=False)
    takeovers: int = attrs.field(default=0, init=False)
    _hint: int = attrs.field(default=0, init=False)  #: number of the last entry, as the leader says
    _heard_leader: float = attrs.field(default=0.0, init=False)  #: when the leader was last heard
    #: When the shared log last answered this leader, or this leader had no request under way.
    _answered: float = attrs.field(default=0.0, init=False)
    #: When this leader sent the latest of the requests that the shared log has answered.
    _confirmed: float = attrs.field(default=-inf, init=False)
    #: All records that were acknowledged before this time are in this journal, according to a message of the leader.
    _current: float = attrs.field(default=-inf, init=False)
    #: (number, time): ``_current`` becomes this time once the entry with this number is applied.
    _awaited: tuple[int, float] | None = attrs.field(default=None, init=False)
    #: The leader that NATS has reported as connected, and the leader that NATS now reports as not connected any more.
    _present: EntryWriter | None = attrs.field(default=None, init=False)
    _gone: EntryWriter | None = attrs.field(default=None, init=False)
    _noted: float = attrs.field(default=0.0, init=False)  #: when the durable mark was synced to MARK last
    _checked: float = attrs.field(default=float("-inf"), init=False)  #: when a follower asked for the log's extent last
    _trimmer: Trimmer = attrs.field(init=False)
    _growth: Growth = attrs.field(factory=Growth, init=False)
    _nats: tuple[NatsStatus, ...] = attrs.field(default=(), init=False)  #: the last report of NATS
    _membership: Membership = attrs.field(init=False)
    #: The timer that stops this member even if listeners are still open; None before a stop is expected.
    _stopping_later: IDelayedCall | None = attrs.field(default=None, init=False)
    _stopping: Deferred[None] | None = attrs.field(default=None, init=False)
    #: Whether messages are refused, because the shared log is too large.
    _overfull: bool = attrs.field(default=False, init=False)
    _led_once: bool = attrs.field(default=False, init=False)  #: whether this server has led since it followed last
    _released: int = attrs.field(default=0, init=False)  #: the position up to which the gate has released commits
    _opened_at: float | None = attrs.field(default=None, init=False)  #: when the shared log was opened
    _busy: set[str] = attrs.field(factory=set, init=False)  #: jobs of which one at a time is under way
    _asked: set[tuple[str, int]] = attrs.field(factory=set, init=False)  #: appends that are under way
    _sent: dict[str, float] = attrs.field(factory=dict, init=False)  #: when appends of unknown outcome were first sent
    _proven: float = attrs.field(default=float("-inf"), init=False)  #: see :attr:`_leads_alone`
    _actions: deque[Action] = attrs.field(factory=deque, init=False)
    #: Deferreds that fire when no action is under way any more.
    _idle: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _broken: bool = attrs.field(default=False, init=False)  #: replication cannot continue
    _reopens: bool = attrs.field(default=False, init=False)  #: the journal is going to be closed and opened again
    _ticking: LoopingCall | None = attrs.field(default=None, init=False)
    #: Why the shared log accepts nothing; empty while it accepts entries.
    _warned: str = attrs.field(default="", init=False)
    #: The warnings since the shared log last answered, so that each warning is logged once.
    _said: deque[str] = attrs.field(factory=lambda: deque(maxlen=REASONS), init=False)

    def __attrs_post_init__(self) -> None:
        self.peers = Peers(self.settings, self.incarnation)
        self._trimmer = Trimmer(self.settings, self.peers)
        self._membership = Membership(self.peers)

    # Start and stop.

    def start(self) -> None:
        """Follow the shared log from where the open journal ends."""
        end = self.journal.writer
        self.role = Role(
            self.peers.writer,
            end.position,
            size=self.settings.members,
            identity=end.identity,
            chain=end.chain,
        )
        self.gate.hand_over, self.gate.on_synced = self._hand_over, self._synced
        self._heard_leader = self._answered = self.reactor.seconds()
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = self.reactor
        self._ticking.start(INTERVAL).addErrback(self._failed)

    def expect_stop(self) -> None:
        """Stop in :data:`PATIENCE` seconds at the latest: listeners wait for appends that may never be accepted."""
        if self._ticking is not None and self._stopping_later is None:
            self._stopping_later = self.reactor.callLater(PATIENCE, self._begin_stop)

    async def stop(self) -> None:
        """Stop taking part; as a leader, first wait until all appends are accepted, for a fast take-over."""
        await self._begin_stop()
        self._stopping = self._stopping_later = None

    def _begin_stop(self) -> Deferred[None]:
        if self._stopping_later is not None and self._stopping_later.active():
            self._stopping_later.cancel()
        if self._stopping is None:
            self._stopping = Deferred.fromCoroutine(self._stop())
        return self._stopping

    async def _stop(self) -> None:
        if self._ticking is None:
            await self.log.close()  # the shared log may be open already, to find out whether the journal must be filled
            return
        await self._await_pending("this server is stopping")
        ticking, self._ticking = self._ticking, None
        if ticking.running:
            ticking.stop()
        self._hand_on()
        self._actions.clear()
        await self._act_over()  # actions under way use the journal, which is closed next
        if self.gate.leading:
            await self.gate.follow(self.role.position, "this server is stopping")
        await self.log.close()

    async def _await_pending(self, reason: str) -> None:
        """Refuse publishes, and wait for a few seconds until the shared log has accepted all appends."""
        later = self._stopping_later
        deadline = self.reactor.seconds() + PATIENCE if later is None else later.getTime()
        self.gate.suspend(reason)
        while self.running and self.role.pending and self.reactor.seconds() < deadline:
            await deferLater(self.reactor, 0.05)

    def _hand_on(self) -> None:
        """If this server leads, let another server take over at once."""
        if self.role.state is State.LEADER:
            self._say(leaving=True)
            log.info("replication: {name} hands over", name=self.settings.name)

    async def _leave(self) -> None:
        """Stop for good and let another server take over, because this leader was removed from the cluster."""
        reason = f"this server, {self.settings.name}, was removed from cluster {self.settings.cluster}"
        await self._await_pending(reason)
        self._hand_on()
        self._removed(f"{reason}, whose members are {self.role.members}")

    def _removed(self, reason: str) -> None:
        self.on_removed(reason)
        raise ConfigError(reason)

    @property
    def running(self) -> bool:
        """Return whether this server takes part in the cluster."""
        return self._ticking is not None and not self._broken

    def status(self) -> ClusterStatus:
        """Return the figures for metrics and status pages."""
        role = self.role
        leads, leader = role.state is State.LEADER, "" if role.leader is None else role.leader.name
        return ClusterStatus(
            name=self.settings.name,
            role=role.state.value,
            leader=leader,
            epoch=role.validity.epoch,
            behind=0 if leads else max(0, self.peers.position_of(leader) - role.mark),
            silent=0.0 if leads else self.reactor.seconds() - self._heard_leader,
            takeovers=self.takeovers,
            entries=role.applied,
            log_size=self._trimmer.size if leads else 0,
            members=self._members(),
            nats=self._nats,
        )

    def _members(self) -> list[MemberStatus]:
        now = self.reactor.seconds()
        if self.role.state is State.LEADER:
            return seen_by_leader(self.role, self.peers, self._growth, now)
        return seen_by_follower(self.role, self.peers, now)

    @property
    def _leader_address(self) -> str:
        """Return the address of the server that leads, as its configuration has it; empty if it is unknown."""
        leader = self.role.leader
        return "" if leader is None else self.peers.address_of(leader.name)

    @property
    def _leads_alone(self) -> bool:
        """Return whether no other server can have taken over from this leader.

        A follower takes over only after it has read all entries, and at least :data:`GONE` seconds after the last
        entry.  So no server can have taken over if this leader sent an entry less than that time ago and the shared log
        has accepted the entry.
        """
        passed = self.reactor.seconds() - self._proven
        return self.role.state is State.LEADER and passed < GONE * (1 - DRIFT)

    def standing(self, part: ServerRole) -> Standing:
        """Return what this server is now, as a member whose :attr:`running` is true and that refuses nothing.

        Readers find here all records that were acknowledged up to a moment ago (rule 16) while the shared log answers
        this leader, or while this follower receives messages of such a leader and has applied all entries that these
        messages mention.
        """
        role, alone = self.role, self._leads_alone
        age = 0.0 if alone else float(self.reactor.seconds() - max(self._confirmed, self._current))
        follows = role.leader is not None and role.applied >= self._hint
        return Standing(
            part,
            leader=self._leader_address,
            age=age,
            caught_up=age < self.settings.max_staleness and (role.state is State.LEADER or follows),
            leads_alone=alone,
        )

    # Four times a second.

    def _tick(self) -> None:
        now = self.reactor.seconds()
        if not self.running:
            return
        if self._opened_at is None:
            self._once("open", self._open)
            return
        self._growth.note(self.role.mark, self.journal.applied + self.gate.released, now)
        self._say()
        if now - self._noted >= 1.0:
            self._noted = now
            self._once("note", self._note)
        if self.role.state is State.FOLLOWER:
            self._once("read", self._read)
            silent = now - self._heard_leader
            if silent > ASK or self._present != self.role.leader:
                self._once("ask", self._ask_leader)
            if silent > self._patience and not self._reopens:
                self._once("take over", self._take_over)
        else:
            self._lead(now)

    def _once(self, name: str, job: Callable[[], Any]) -> None:
        """Begin *job*, unless the job with this *name* is under way already."""
        if name in self._busy:
            return
        self._busy.add(name)
        Deferred.fromCoroutine(job()).addBoth(self._done, name).addErrback(self._failed)

    def _done(self, result: Any, name: str) -> Any:
        self._busy.discard(name)
        if name == "act":
            idle, self._idle = self._idle, []
            for each in idle:
                each.callback(None)
        if isinstance(result, Failure) and result.check(Unavailable):
            self._unavailable(result)
            return None
        return result

    def _unavailable(self, failure: Failure) -> None:
        """Log why the shared log is unavailable."""
        self._warned = str(failure.value)
        self._warn(self._warned)

    def _warn(self, why: str) -> None:
        """Log *why* the shared log cannot be used; log each reason only once until the shared log answers again."""
        if why not in self._said:
            self._said.append(why)
            log.warn("replication: {why}", why=why)

    def _failed(self, failure: Failure) -> None:
        """Stop for good: the journal or the shared log cannot be used."""
        if self.running and not self._broken:
            self._broken = True
            self._actions.clear()
            self.journal.break_off(f"replication cannot continue: {failure.getErrorMessage()}")

    def _reopen(self, reason: str) -> None:
        """Request that the journal is closed and opened again; until then this server only follows."""
        self._reopens = True
        self.on_reopen(reason)

    async def _open(self) -> None:
        for warning in await self.log.open(self._heard, self.peers.writer, self._members_asked):
            log.warn("replication: {warning}", warning=warning)
        self._opened_at = self._heard_leader = self.reactor.seconds()
        log.info(
            "replication: {name} follows cluster {cluster} from position {position}",
            name=self.settings.name,
            cluster=self.settings.cluster,
            position=self.role.position,
        )

    async def _note(self) -> None:
        self.role.noted(await self.journal.note())

    # Follow.

    async def _read(self) -> None:
        role = self.role
        while self.running and role.state is State.FOLLOWER:
            found = await self.log.read(role.applied + 1, READ)
            if not found:
                found = await self._check_extent()
            elif not role.admitted:
                await self._check_extent()
            before = role.validity.epoch, role.validity.reached
            for number, entry in found:
                role.read(number, entry)
            if before != (role.validity.epoch, role.validity.reached) and not self.peers.has_left(found[-1][1].writer):
                # The first entries of a leader may arrive before its first message.
                self._heard_leader = self.reactor.seconds()
            await self._perform()
            self._check_awaited()
            if not found or role.applied >= self._hint:
                self._name_leader()
                return

    async def _check_extent(self) -> list[tuple[int, LogEntry]]:
        """Compare the extent of the shared log, which has no next entry, with the entries that were applied.

        This is done only now and then, because NATS needs more time for this answer than for many entries.

        :return: the first entries of the shared log, if this server has to read from there
        """
        role, since, now = self.role, self.role.applied, self.reactor.seconds()
        if now - self._checked < INTERVAL:
            return []
        self._checked = now
        extent = await self.log.extent()
        self._nats = extent.nodes
        begins_later = extent.first > role.applied + 1
        found = await self.log.read(extent.first, READ) if begins_later else []
        if begins_later and (extent.first > extent.last or (found and not found[0][1].may_begin)):
            self._warn(
                f"something else than Fyrehose has purged the shared log up to entry {extent.first - 1}, of which this "
                f"server has applied {role.applied}; it waits for a checkpoint of the leader in front; if no server "
                "leads, run `fyrehose cluster reseed`"
            )
            return []
        self._said.clear()
        role.learned_last(extent.last, since)
        return found

    def _name_leader(self) -> None:
        leader = self.role.leader
        if leader is not None and not self.gate.leading:
            where = f" at {self._leader_address}" if self._leader_address else ""
            self.gate.refusal = f"this server follows {leader.name}{where}; publish there"

    async def _ask_leader(self) -> None:
        """Find out whether the leader's process has ended.

        The answer may be wrong; it only shortens the wait before a take-over.  The answer "not connected" counts only
        if the leader was found connected before, because permissions of NATS may hide the leader.
        """
        leader = self.role.leader
        if leader is None:
            return
        if await self.log.is_here(leader):
            self._present, self._gone = leader, None
        elif leader == self._present:
            self._gone = leader

    @property
    def _patience(self) -> float:
        """Return how many seconds without a message of the leader this server waits before it takes over."""
        leader = self.role.leader
        spread = self.jitter * SPREAD
        if leader is not None and self.peers.has_left(leader):
            return spread
        if leader is not None and leader == self._gone:
            return GONE + spread
        return self.settings.takeover_after + spread

    async def _take_over(self) -> None:
        extent = await self.log.extent()
        if extent.last == 0 and not self._may_begin():
            return
        silent = self.reactor.seconds() - self._heard_leader
        why = " and none is connected to NATS" if self.role.leader == self._gone is not None else ""
        if silent > self._patience and self.role.take_over(extent.last, f"no leader was heard for {silent:.1f} s{why}"):
            self._answered = self.reactor.seconds()
            await self._perform()

    def _may_begin(self) -> bool:
        """Return whether this server may write the first entry of an empty shared log."""
        listened = self.reactor.seconds() - (self._opened_at or 0.0)
        why = waits(self.role.position, self.gate.returning, self.peers, listened)
        if why and self.gate.refusal != why:
            self.gate.refusal = why
            log.warn("replication: {why}", why=why)
        return not why

    # Lead.

    def _lead(self, now: float) -> None:
        role = self.role
        if any((item.entry.ident, item.expect) not in self._asked for item in role.inflight if not item.known):
            role.repeat()
            self._soon()
        if not role.pending and not self._warned:
            self._answered = now
        if role.state is not State.LEADER:
            return
        why = self._warned or "the shared log does not answer"
        if now - self._answered > QUIET and self.gate.suspend(why):
            log.warn("replication: {why}; messages are refused until it accepts them", why=why)
        if not role.admitted:
            self._once("leave", self._leave)
        self._membership.fill_places(role, now)
        self._trimmer.trim(role, now)
        if self._trimmer.is_due(now) or now - self._confirmed >= INTERVAL:
            self._once("measure", self._measure)
        self._soon()

    async def _measure(self) -> None:
        asked = self.reactor.seconds()
        extent = await self.log.extent()
        self._nats = extent.nodes
        self._confirmed = max(self._confirmed, asked)
        why = self._trimmer.measured(self.role, extent.size, extent.limit, extent.first)
        was, self._overfull = self._overfull, bool(why)
        if why and self.gate.suspend(why):
            log.warn("replication: {why}; messages are refused until another server confirms", why=why)
        elif not why and (was or not self.role.pending):
            self._heard_answer()

    def _hand_over(self, position: int, batches: Sequence[Batches]) -> None:
        """Append to the shared log *batches*, which this server has written, but perhaps not synced yet."""
        if self.role.state is not State.LEADER:
            return
        if not self.role.pending:
            self._answered = self.reactor.seconds()
        self.role.append(position, batches)
        self._soon()

    def _synced(self, position: int) -> None:
        if self.role.state is State.LEADER:
            self.role.was_synced(position)
            self._soon()

    # Talk.

    def _say(self, leaving: bool = False) -> None:
        refused = self.journal.standing.refusal
        refusal = "" if refused is None else str(refused)
        servers = packed(self._members()) if self.role.state is State.LEADER else []
        age = self.reactor.seconds() - self._confirmed
        self.log.say(self.peers.pack(self.role, leaving, refusal, servers, age, self._membership.answer))

    def _heard(self, message: bytes) -> None:
        if not self.running:
            return
        now = self.reactor.seconds()
        try:
            peer = self.peers.hear(message, now, self.role)
        except ConfigError:
            self._failed(Failure())
            return
        if peer is not None and peer.leads:
            self._heard_a_leader(peer)

    def _members_asked(self, message: bytes) -> None:
        if self.running:
            self._membership.ask(message, self.role, self.reactor.seconds())
            self._soon()

    def _heard_a_leader(self, peer: ClusterPeer) -> None:
        if peer.epoch < self.role.validity.epoch:
            return
        if self.role.state is State.FOLLOWER:
            if not self.peers.has_left(peer.writer):
                self._heard_leader = peer.heard
            self._hint = max(self._hint, peer.applied)
            if self._awaited is None:
                self._awaited = peer.applied, peer.heard - max(0.0, peer.age)
            self._check_awaited()
            if self._hint > self.role.applied:
                self._once("read", self._read)
        elif peer.epoch > self.role.validity.epoch:
            self._once("look", self._look)

    def _check_awaited(self) -> None:
        """Update the time of :attr:`age` if this server has applied the entries that the leader has announced."""
        role = self.role
        if self._awaited is not None and role.applied >= self._awaited[0] and role.mark >= role.position:
            self._current, self._awaited = max(self._current, self._awaited[1]), None

    async def _look(self) -> None:
        """Read the last number of the shared log, to see whether a server that claims to lead has taken over."""
        since = self.role.applied
        extent = await self.log.extent()
        self.role.learned_last(extent.last, since)
        await self._perform()

    # Act.

    def _note_accepted(self) -> None:
        """Note the time at which this leader sent the last entry that the shared log has accepted."""
        if self.role.state not in (State.LEADER, State.CANDIDATE):
            self._sent.clear()
            self._proven = float("-inf")
            return
        unknown = {item.entry.ident for item in self.role.inflight}
        for ident in self._sent.keys() - unknown:
            self._proven = max(self._proven, self._sent.pop(ident))

    def _soon(self) -> None:
        """Carry out the actions of the role at once or, if actions are under way, after these."""
        self._note_accepted()
        self._actions.extend(self.role.take())
        self._once("act", self._act)

    async def _perform(self) -> None:
        """Carry out the actions of the role, and wait until that is done."""
        self._soon()
        await self._act_over()

    async def _act_over(self) -> None:
        """Wait until no action is under way."""
        if "act" in self._busy:
            idle: Deferred[None] = Deferred()
            self._idle.append(idle)
            await idle

    async def _act(self) -> None:
        self._release()
        while self._actions and self.running:
            await self._do(self._actions.popleft())
            self._actions.extend(self.role.take())
            self._release()

    def _release(self) -> None:
        if self.role.state is not State.LEADER or not self.gate.leading:
            return
        if self.role.mark > self._released:
            self._released = self.role.mark
            self.gate.release(self._released)
            self._once("announce", self._announce)

    async def _announce(self) -> None:
        """Announce new entries of the shared log to the followers, after a short delay that collects several."""
        await deferLater(self.reactor, ANNOUNCE)
        self._say()

    async def _do(self, action: Action) -> None:
        role = self.role
        match action:
            case Append(entry, expect, since):
                self._append(entry, expect, since)
            case LookAt(number):
                self._once(f"look at {number}", lambda: self._look_at(number))
            case Write() as write:
                role.was_synced(await self._apply(write.position, write.take_following(self._actions)))
            case Compare(position, data):
                if await self.journal.differs(position, data):
                    role.contradicted(position)
            case Cut(position, reason):
                await self.gate.follow(position, reason)
                role.was_cut()
                role.was_synced(position)
            case Purge(number):
                self._once("purge", lambda: self._purge(number))
            case Fill(position):
                served = self.settings.journal or any(peer.journal for peer in self.peers.others.values())
                if not self.can_fill or not served:
                    raise too_far_behind(role.position, position)
                self._reopen(
                    f"the journal ends at position {role.position}, and the shared log begins at {position}: it has to "
                    "be filled from another server"
                )
            case Listed(members):
                log.info("replication: the members are {members} now", members=str(members))
            case Reopen(reason):
                if self.gate.leading:
                    await self.gate.follow(role.position, reason)
                self._reopen(reason)
            case Changed(state, reason):
                await self._changed(state, reason)

    async def _changed(self, state: State, reason: str) -> None:
        log.info(
            "replication: {name} is {state} now: {reason}", name=self.settings.name, state=state.value, reason=reason
        )
        if state is State.LEADER:
            self.takeovers += 1
            self._trimmer.start(self.role, self.reactor.seconds())
            self._overfull = False
            self._say()
            await self.gate.lead()
            self.role.identity = self.journal.writer.identity  # a journal that was empty before has an identity now
            self._led_once = True
        elif state is State.FOLLOWER:
            self._heard_leader = self.reactor.seconds()
            if self._led_once:
                self._led_once = False
                self._reopen(f"this server was the leader, and follows again: {reason}")
        elif state is State.STOPPED and not self.role.admitted:
            self._removed(reason)
        elif state is State.STOPPED:
            raise ConfigError(reason)

    async def _apply(self, position: int, data: bytes) -> int:
        while True:
            try:
                return await self.journal.apply(position, data)
            except NoRoom as full:
                log.warn("replication: the disk is full; following waits for free space: {why}", why=full)
                await deferLater(self.reactor, 1.0)
                if not self.running:
                    raise
            except Damage as damage:
                raise ConfigError(f"the shared log does not continue this journal: {damage}") from damage

    def _append(self, entry: LogEntry, expect: int, since: int) -> None:
        asked = entry.ident, expect
        if asked in self._asked:
            return
        self._asked.add(asked)
        self._sent.setdefault(entry.ident, self.reactor.seconds())

        def answered(number: int) -> None:
            # If the append was repeated, the shared log may have accepted the first one, so the time of that one
            # counts.
            self._confirmed = max(self._confirmed, self._sent.get(entry.ident, -inf))
            self._heard_answer()
            self.role.accepted(entry, number)

        def refused(failure: Failure) -> None:
            error = failure.value
            if isinstance(error, Refused):
                self._heard_answer()
                self.role.refused(entry, error.last, since)
            else:
                failure.trap(Unavailable)
                self._unavailable(failure)

        def settled(result: Any) -> Any:
            self._asked.discard(asked)
            if self.running:
                self._soon()
            return result

        appended: Deferred[int] = self.log.append(entry, expect)
        appended.addCallbacks(answered, refused).addBoth(settled).addErrback(self._failed)

    def _heard_answer(self) -> None:
        self._answered = self.reactor.seconds()
        self._warned = ""
        self._said.clear()
        if not self._overfull and self.gate.resume():
            log.info("replication: the shared log answers again")

    async def _look_at(self, number: int) -> None:
        if found := await self.log.read(number, 1):
            self.role.found(*found[0])
        elif (await self.log.extent()).first > number:
            self.role.found(number, None)
        self._soon()

    async def _purge(self, number: int) -> None:
        await self.log.purge(number)
