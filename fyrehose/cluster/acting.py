"""Carry out the actions that the role of a server decides, on its journal and on the shared log.

Role.take() -> actions, in order -> the journal: writes, cuts, releases
                                 -> the shared log: appends, purges, questions -> their answers -> Role
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.task import deferLater
from twisted.logger import Logger

from fyrehose.cluster.appends import Appends
from fyrehose.cluster.gate import ReplicatedGate
from fyrehose.cluster.jobs import Jobs
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
from fyrehose.cluster.shared_log import ISharedLog
from fyrehose.errors import ConfigError
from fyrehose.journal.format import Damage
from fyrehose.journal.journal import FileJournal
from fyrehose.journal.writer import NoRoom

if TYPE_CHECKING:
    from fyrehose.cluster.member import Member

log = Logger()

#: The name of the job that carries out the actions.
ACT = "act"
#: How long the leader collects new entries before it notifies the followers of them, in seconds.
ANNOUNCE = 0.005


@attrs.define(eq=False)
class Actor:
    """The actions of one role, which are carried out in their order, each after the one before has ended.

    Between two actions the gate releases what the role has confirmed by then, and never more than that.

    :ivar member: is told of changes that concern the whole server
    """

    reactor: Any
    role: Role
    journal: FileJournal
    gate: ReplicatedGate
    log: ISharedLog
    appends: Appends
    jobs: Jobs
    member: Member
    _actions: deque[Action] = attrs.field(factory=deque, init=False)
    #: The position up to which the gate has released commits.
    _released: int = attrs.field(default=0, init=False)

    def act(self) -> None:
        """Carry out the actions of the role at once or, if actions are under way, after these."""
        self.appends.settle(self.role)
        self._actions.extend(self.role.take())
        self.jobs.begin(ACT, self._act)

    async def perform(self) -> None:
        """Carry out the actions of the role, and wait until that is done."""
        self.act()
        await self.jobs.over(ACT)

    async def over(self) -> None:
        """Wait until the action that is under way has ended; leave out those after it."""
        self.drop()
        await self.jobs.over(ACT)

    def drop(self) -> None:
        """Carry out none of the actions that wait."""
        self._actions.clear()

    async def _act(self) -> None:
        self._release()
        while self._actions and self.member.running:
            await self._do(self._actions.popleft())
            self._actions.extend(self.role.take())
            self._release()

    def _release(self) -> None:
        if self.role.state is not State.LEADER or not self.gate.leading:
            return
        if self.role.mark > self._released:
            self._released = self.role.mark
            self.gate.release(self._released)
            self.jobs.begin("announce", self._announce)

    async def _announce(self) -> None:
        """Announce new entries of the shared log to the followers, after a short delay that collects several."""
        await deferLater(self.reactor, ANNOUNCE)
        self.member.say()

    async def _do(self, action: Action) -> None:
        role = self.role
        match action:
            case Append(entry, expect, since):
                if (ended := self.appends.send(role, entry, expect, since)) is not None:
                    ended.addCallback(lambda _: self._go_on()).addErrback(self.member.failed)
            case LookAt(number):
                self.jobs.begin(f"look at {number}", lambda: self._look_at(number))
            case Write() as write:
                role.was_synced(await self._write(write.position, write.take_following(self._actions)))
            case Compare(position, data):
                if await self.journal.differs(position, data):
                    role.contradicted(position)
            case Cut(position, reason):
                if not self.gate.follow(position, reason):  # Otherwise another role begins with the journal.
                    role.was_cut()
                    role.was_synced(position)
            case Purge(number):
                self.jobs.begin("purge", lambda: self._purge(number))
            case Fill(position):
                self.member.fill(position)
            case Listed(members):
                log.info("replication: the members are {members} now", members=str(members))
            case Reopen(reason):
                if self.gate.leading:
                    self.gate.follow(role.position, reason)
                self.member.reopen(reason)
            case Changed(state, reason):
                await self.member.changed(state, reason)

    def _go_on(self) -> None:
        """Act on the answer to an append."""
        if self.member.running:
            self.act()

    async def _write(self, position: int, data: bytes) -> int:
        """Write batches of the leader to the journal; while the disk is full, wait for free space."""
        while True:
            try:
                return await self.journal.apply(position, data)
            except NoRoom as full:
                log.warn("replication: the disk is full; following waits for free space: {why}", why=full)
                await deferLater(self.reactor, 1.0)
                if not self.member.running:
                    raise
            except Damage as damage:
                raise ConfigError(f"the shared log does not continue this journal: {damage}") from damage

    async def _look_at(self, number: int) -> None:
        """Read entry *number* of the shared log, to learn whether an append of unknown outcome was accepted."""
        if found := await self.log.read(number, 1):
            self.role.found(*found[0])
        elif (await self.log.extent()).first > number:
            self.role.found(number, None)
        self.act()

    async def _purge(self, number: int) -> None:
        await self.log.purge(number)
