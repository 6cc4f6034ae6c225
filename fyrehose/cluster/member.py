"""One server of a cluster, which carries out the actions that its role decides on its journal and on the shared log.

the shared log -> Role -> actions, in order -> the journal, the shared log
the journal (what the leader commits) -> Role -> the shared log -> release
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import attrs
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from fyrehose.cluster.acting import Actor
from fyrehose.cluster.appends import Appends
from fyrehose.cluster.entries import LogEntry
from fyrehose.cluster.filling import too_far_behind, waits
from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.jobs import Jobs
from fyrehose.cluster.leader_watch import LeaderWatch
from fyrehose.cluster.log_answers import LogAnswers
from fyrehose.cluster.log_health import LogHealth
from fyrehose.cluster.members import MAINTENANCE, ChangeKind, MemberChange
from fyrehose.cluster.membership import Membership
from fyrehose.cluster.orderly_stop import OrderlyStop
from fyrehose.cluster.overview import Growth, packed, seen_by_follower, seen_by_leader
from fyrehose.cluster.peers import ClusterPeer, Peers
from fyrehose.cluster.role import (
    Role,
    State,
)
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.shared_log import EntryRange, ISharedLog
from fyrehose.cluster.succession import Succession
from fyrehose.cluster.trimming import Trimmer
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.journal.exchange import Batches
from fyrehose.journal.journal import FileJournal
from fyrehose.observe.meters import ClusterStatus, MemberStatus
from fyrehose.standing import ServerRole, Standing

log = Logger()

#: How often the state is checked, and sent to the other servers, in seconds.
INTERVAL = 0.25
#: How many entries are read at once.
READ = 64


@attrs.define(eq=False)
class Member:
    """This server as a member of its cluster.

    :ivar reactor: runs timers, and is the clock
    :ivar peers: the other servers that have sent messages
    :ivar on_reopen: called with the reason when the journal has to be closed and opened again: another server has taken
        over from this one, the journal has to be filled, or the shared log has lost entries
    :ivar on_removed: called with the reason when this server stops taking part, because it is not a member any more
    :ivar can_fill: whether a journal that is too far behind is filled when it is opened
    :ivar takeovers: how often this server has become the leader
    """

    reactor: Any
    journal: FileJournal
    gate: ReplicatedGate
    log: ISharedLog
    peers: Peers
    on_reopen: Callable[[str], object] = lambda reason: None
    on_removed: Callable[[str], object] = lambda reason: None
    can_fill: bool = False
    settings: ReplicationSettings = attrs.field(init=False)
    role: Role = attrs.field(init=False)
    takeovers: int = attrs.field(default=0, init=False)
    _watch: LeaderWatch = attrs.field(init=False)
    _answers: LogAnswers = attrs.field(init=False)
    _appends: Appends = attrs.field(init=False)
    _actor: Actor = attrs.field(init=False)
    _jobs: Jobs = attrs.field(init=False)
    _stop: OrderlyStop = attrs.field(init=False)
    _succession: Succession = attrs.field(init=False)
    _trimmer: Trimmer = attrs.field(init=False)
    _membership: Membership = attrs.field(init=False)
    _growth: Growth = attrs.field(factory=Growth, init=False)
    _health: LogHealth = attrs.field(factory=LogHealth, init=False)
    _noted: float = attrs.field(default=0.0, init=False)  #: when the durable mark was synced to MARK last
    _checked: float = attrs.field(default=-inf, init=False)  #: when a follower asked for the log's extent last
    _read_at: float = attrs.field(default=-inf, init=False)  #: when a read of the shared log was answered last
    _led_once: bool = attrs.field(default=False, init=False)  #: whether this server has led since it followed last
    _opened_at: float | None = attrs.field(default=None, init=False)  #: when the shared log was opened
    _broken: bool = attrs.field(default=False, init=False)  #: replication cannot continue
    _reopens: bool = attrs.field(default=False, init=False)  #: the journal is going to be closed and opened again
    _ticking: LoopingCall | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.settings = self.peers.settings
        self._watch = LeaderWatch(self.peers)
        self._answers = LogAnswers(self.gate)
        self._appends = Appends(self.reactor.seconds, self.log, self._answers)
        self._jobs = Jobs(self._answers.unavailable, self.failed)
        self._stop = OrderlyStop(self.reactor, self._stop_once)
        self._succession = Succession(self.reactor, self.journal, self.gate, self.peers, self._growth, self.say)
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
            ready=lambda: not self.journal.why_not_ready(),
        )
        self._actor = Actor(
            self.reactor, self.role, self.journal, self.gate, self.log, self._appends, self._jobs, member=self
        )
        self.gate.connect(self._hand_over, self._synced)
        self._watch.begin(self.reactor.seconds())
        self._answers.begin(self.reactor.seconds())
        self._health.begin(self.reactor.seconds())
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = self.reactor
        self._ticking.start(INTERVAL).addErrback(self.failed)

    def expect_stop(self) -> None:
        """Prepare to stop: listeners still wait for appends, which may never be accepted."""
        if self._ticking is not None:
            self._stop.expect()

    async def stop(self) -> None:
        """Stop taking part; as a leader, first wait until all appends are accepted, for a fast take-over."""
        await self._stop.perform()

    async def _stop_once(self) -> None:
        if self._ticking is None:
            await self.log.close()  # the shared log may be open already, to find out whether the journal must be filled
            return
        await self._await_pending("this server is stopping")
        ticking, self._ticking = self._ticking, None
        if ticking.running:
            ticking.stop()
        self._hand_on()
        await self._actor.over()  # an action that is under way uses the journal, which is closed next
        if self.gate.leading:
            self.gate.follow(self.role.position, "this server is stopping")
        await self.log.close()

    async def _await_pending(self, reason: str) -> None:
        """Refuse publishes, and wait for a few seconds until the shared log has accepted all appends."""
        deadline = self._stop.deadline
        self.gate.suspend(reason)
        while self.running and self.role.pending and self.reactor.seconds() < deadline:
            await deferLater(self.reactor, 0.05)

    def _hand_on(self) -> None:
        """If this server leads, let another server take over at once."""
        if self.role.state is State.LEADER:
            with suppress(FyrehoseError):  # if none can take over at once, any may
                self._succession.successor = self._succession.choose(self.role)
            self._succession.leaving = True
            self.say()
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
            behind=0 if leads else max(0, self.peers.last_of(leader).position - role.mark),
            silent=0.0 if leads else self.reactor.seconds() - self._watch.heard,
            takeovers=self.takeovers,
            entries=role.applied,
            log_size=self._trimmer.size if leads else 0,
            members=self._members(),
            nats=self._health.nodes,
            log=self._health.status(self.reactor.seconds()),
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
        return "" if leader is None else self.peers.last_of(leader.name).address

    def standing(self, part: ServerRole) -> Standing:
        """Return what this server is now, as a member whose :attr:`running` is true and that refuses nothing.

        The age is by the clock of this server (rule 16): it counts from when this leader sent the last request whose
        answer shows that no other server leads, or from when this follower asked such a leader for its end, and this
        server has everything up to there.
        """
        role, now = self.role, self.reactor.seconds()
        alone = not self._succession.leaving and self._appends.lead_alone(role, now)
        age = 0.0 if alone else float(now - max(self._appends.confirmed, self._watch.current))
        return Standing(
            part,
            leader=self._leader_address,
            age=age,
            caught_up=age < self.settings.max_staleness,
            leads_alone=alone,
        )

    # Four times a second.

    def _tick(self) -> None:
        now = self.reactor.seconds()
        if not self.running:
            return
        if self._opened_at is None:
            self._jobs.begin("open", self._open)
            return
        self._growth.note(self.role.mark, self.journal.applied + self.gate.released, now)
        self._succession.look()
        self.say()
        if now - self._noted >= 1.0:
            self._noted = now
            self._jobs.begin("note", self._note)
            self._health.watch(now)
        if self.role.state is State.FOLLOWER:
            self._jobs.begin("read", self._read)
            if now - self._read_at >= 2 * INTERVAL:  # another NATS server than the stream's leader may answer reads
                self._jobs.begin("check", self._check)
            if self._watch.must_ask(now):
                self._jobs.begin("ask", self._ask_leader)
            self._try_take_over(now)
        else:
            self._lead(now)

    def _try_take_over(self, now: float) -> None:
        if self._watch.why_take_over(self.role, now, self._succession.unable) and not self._reopens:
            self._jobs.begin("take over", self._take_over)

    def failed(self, failure: Failure) -> None:
        """Stop for good: the journal or the shared log cannot be used."""
        if self.running and not self._broken:
            self._broken = True
            self._actor.drop()
            self.journal.break_off(f"replication cannot continue: {failure.getErrorMessage()}")

    async def _open(self) -> None:
        for warning in await self.log.open(self._heard, self.peers.writer, self._members_asked):
            log.warn("replication: {warning}", warning=warning)
        self._opened_at = self.reactor.seconds()
        self._watch.begin(self._opened_at)
        log.info(
            "replication: {name} follows cluster {cluster} from position {position}",
            name=self.settings.name,
            cluster=self.settings.cluster,
            position=self.role.position,
        )

    async def _note(self) -> None:
        self.role.noted(await self._succession.sync())

    # Follow.

    async def _read(self) -> None:
        role = self.role
        while self.running and role.state is State.FOLLOWER and not self._reopens:
            found = await self.log.read(role.applied + 1, READ)
            self._read_at = self.reactor.seconds()
            if not found:
                found = await self._check_extent()
            elif not role.admitted:
                await self._check_extent()
            before = role.validity.epoch, role.validity.reached
            for number, entry in found:
                role.read(number, entry)
            if before != (role.validity.epoch, role.validity.reached):
                self._watch.hear_entries(found[-1][1].writer, self.reactor.seconds())
            await self._actor.perform()
            self._watch.applied(role)
            if not found or self._watch.has_all(role):
                self._name_leader()
                self._try_take_over(self.reactor.seconds())  # the leader may have handed over meanwhile
                return

    async def _check(self) -> None:
        await self._check_extent()

    async def _check_extent(self) -> list[tuple[int, LogEntry]]:
        """Compare the extent of the shared log, which has no next entry, with the entries that were applied.

        This is done only now and then, because NATS needs more time for this answer than for many entries.

        :return: the first entries of the shared log, if this server has to read from there
        """
        role, since, now = self.role, self.role.applied, self.reactor.seconds()
        if now - self._checked < INTERVAL:
            return []
        self._checked = now
        extent = await self._extent()
        begins_later = extent.first > role.applied + 1
        found = await self.log.read(extent.first, READ) if begins_later else []
        if begins_later and (extent.first > extent.last or (found and not found[0][1].may_begin)):
            self._answers.warn(
                f"something else than Fyrehose has purged the shared log up to entry {extent.first - 1}, of which this "
                f"server has applied {role.applied}; it waits for a checkpoint of the leader in front; if no server "
                "leads, run `fyrehose cluster reseed`"
            )
            return []
        self._answers.read()
        role.learned_last(extent.last, since)
        return found

    async def _extent(self) -> EntryRange:
        extent = await self.log.extent()
        self._health.report(extent, self.reactor.seconds())
        return extent

    def _name_leader(self) -> None:
        leader = self.role.leader
        if leader is not None and not self.gate.leading:
            where = f" at {self._leader_address}" if self._leader_address else ""
            self.gate.refuse(f"this server follows {leader.name}{where}; publish there")

    async def _ask_leader(self) -> None:
        """Ask NATS whether the leader's process is still connected.

        Permissions of NATS may hide all servers, so it counts as gone only if NATS reports this server.
        """
        leader = self.role.leader
        if leader is not None:
            here = await self.log.is_here(leader) or not await self.log.is_here(self.peers.writer)
            self._watch.found(leader, here)

    async def _take_over(self) -> None:
        extent = await self.log.extent()
        if extent.last == 0 and not self._may_begin():
            return
        why = self._watch.why_take_over(self.role, self.reactor.seconds(), self._succession.unable)
        if why and self.role.take_over(extent.last, why):
            self._answers.begin(self.reactor.seconds())
            await self._actor.perform()

    def _may_begin(self) -> bool:
        """Return whether this server may write the first entry of an empty shared log."""
        listened = self.reactor.seconds() - (self._opened_at or 0.0)
        why = waits(self.role.position, self.gate.returning, self.peers, listened)
        if why and self.gate.refuse(why):
            log.warn("replication: {why}", why=why)
        return not why

    # Lead.

    def _lead(self, now: float) -> None:
        role = self.role
        if self._appends.lacks(role):
            role.repeat()
            self._actor.act()
        self._answers.note_idle(role, now)
        if role.state is not State.LEADER:
            return
        self._answers.refuse_when_silent(now)
        if not role.admitted:
            self._jobs.begin("leave", self._leave)
        elif self._succession.must_hand_over():
            self._jobs.begin("hand over", lambda: self._relinquish(self._succession.unfit))
        if not self._succession.leaving:  # nothing may come between the last append and the successor's take-over
            self._membership.fill_places(role, now)
            self._trimmer.trim(role, now)
        if self._trimmer.is_due(now) or now - self._appends.confirmed >= INTERVAL:
            self._jobs.begin("measure", self._measure)
        self._actor.act()

    async def _relinquish(self, why: str, asked: MemberChange | None = None) -> None:
        """Hand over, unless no other server can lead, or not the one that the operator has *asked* for."""
        try:
            await self._succession.hand_over(self.role, why, "" if asked is None else asked.by)
        except FyrehoseError as error:
            if asked is not None:
                self._membership.answer = {"id": asked.ident, "refused": str(error)}
            self._answers.warn(f"another server should lead, because {why}, but {error}")

    async def _measure(self) -> None:
        asked, since = self.reactor.seconds(), self.role.applied
        extent = await self._extent()
        self._appends.looked(self.role, asked, extent.last)
        self.role.learned_last(extent.last, since)
        why = self._trimmer.measured(self.role, extent.size, extent.limit, extent.first)
        self._answers.measured(why, self.role, self.reactor.seconds())
        self._actor.act()

    def _hand_over(self, position: int, batches: Sequence[Batches]) -> None:
        """Append to the shared log *batches*, which this server has written, but perhaps not synced yet."""
        if self.role.state is not State.LEADER:
            return
        if not self.role.pending:
            self._answers.begin(self.reactor.seconds())
        self.role.append(position, batches)
        self._actor.act()

    def _synced(self, position: int) -> None:
        if self.role.state is State.LEADER:
            self.role.was_synced(position)
            self._actor.act()

    # Talk.

    def say(self) -> None:
        """Tell the other servers what this one is and has."""
        succession = self._succession
        refused = self.journal.standing.refusal
        refusal = "" if refused is None else str(refused)
        servers = packed(self._members()) if self.role.state is State.LEADER else []
        more = {
            "successor": succession.successor,
            "unfit": succession.unfit,
            "answer": self._membership.answer,
        }
        now = self.reactor.seconds()
        self.log.say(
            self.peers.pack(self.role, succession.leaving, refusal, servers, self._appends.confirmed, more, now=now)
        )

    def _heard(self, message: bytes) -> None:
        if not self.running:
            return
        now = self.reactor.seconds()
        try:
            peer = self.peers.hear(message, now, self.role)
        except ConfigError:
            self.failed(Failure())
            return
        if peer is not None and peer.leads:
            self._heard_a_leader(peer)

    def _members_asked(self, message: bytes) -> None:
        change = MemberChange.unpack(message) if self.running else None
        if change is None:
            return
        if change.kind is ChangeKind.HAND_OVER:
            if change.name == self.settings.name and self.role.state is State.LEADER:
                self._jobs.begin("hand over", lambda: self._relinquish("an operator has asked for it", change))
        elif change.kind in (ChangeKind.MAINTAIN, ChangeKind.RESUME):
            if change.name == self.settings.name and self.gate.unfit in ("", MAINTENANCE):
                self.gate.unfit = MAINTENANCE if change.kind is ChangeKind.MAINTAIN else ""
                self.say()
        else:
            self._membership.ask(change, self.role, self.reactor.seconds())
            self._actor.act()

    def _heard_a_leader(self, peer: ClusterPeer) -> None:
        if peer.epoch < self.role.validity.epoch:
            return
        if self.role.state is State.FOLLOWER:
            self._watch.hear(peer)
            self._watch.applied(self.role)
            if peer.leaving or not self._watch.has_all(self.role):
                self._jobs.begin("read", self._read)
        elif peer.epoch > self.role.validity.epoch:
            self._jobs.begin("measure", self._measure)

    # Changes that an action brings.

    def fill(self, position: int) -> None:
        """Request that the journal is filled from another server, because the shared log begins at *position*."""
        served = self.settings.journal or any(peer.journal for peer in self.peers.others.values())
        if not self.can_fill or not served:
            raise too_far_behind(self.role.position, position)
        self.reopen(
            f"the journal ends at position {self.role.position}, and the shared log begins at {position}: it has to be "
            "filled from another server"
        )

    def reopen(self, reason: str) -> None:
        """Request that the journal is closed and opened again; until then this server only follows."""
        self._reopens = True
        self.on_reopen(reason)

    async def changed(self, state: State, reason: str) -> None:
        """Lead, follow or stop, because the role has changed its state."""
        log.info(
            "replication: {name} is {state} now: {reason}", name=self.settings.name, state=state.value, reason=reason
        )
        if state is State.LEADER:
            self.takeovers += 1
            self._trimmer.start(self.role, self.reactor.seconds())
            self._answers.lead()
            self.say()
            await self.gate.lead()
            self.role.was_begun(self.journal.writer.identity)
            self._led_once = True
        elif state is State.FOLLOWER:
            self._watch.begin(self.reactor.seconds())
            if self._led_once:
                self._led_once = False
                self.reopen(f"this server was the leader, and follows again: {reason}")
        elif state is State.STOPPED and not self.role.admitted:
            self._removed(reason)
        elif state is State.STOPPED:
            raise ConfigError(reason)
