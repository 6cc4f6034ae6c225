"""Change the members while this server leads, as operators request it and as servers take free places.

    in: requests of `fyrehose cluster add`, `remove` and `replace`, servers that have sent messages
    out: changes for the role to append, and the answer to the last request

A request is repeated until this leader, or the next one, answers it: a second time it changes nothing.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError
from fyrehose.replication.members import MemberChange, Members
from fyrehose.replication.peers import Peers
from fyrehose.replication.role import Role, State

log = Logger()

#: A server that has sent a message within so many seconds takes a free place.
PRESENT = 2.0
#: A member without a message for so many seconds may be removed although it has bytes that others lack.
SILENT = 10.0


@attrs.define(eq=False)
class Membership:
    """Carries out changes of the members, one at a time.

    :ivar answer: the last request that was done or refused: its id, and why it was refused
    """

    peers: Peers
    answer: dict[str, str] = attrs.field(factory=dict, init=False)

    def ask(self, message: bytes, role: Role, now: float) -> None:
        """Begin the change of the members that *message* requests, if this server leads; set ``answer`` later."""
        change = MemberChange.unpack(message)
        if change is None or role.state is not State.LEADER or role.changes_members:
            return
        try:
            after = change.apply(role.members)
            self._check_copies(role, role.members, after, now)
        except FyrehoseError as refused:
            self.answer = {"id": change.ident, "refused": str(refused)}
            return
        if after == role.members:
            self.answer = {"id": change.ident, "refused": ""}
        elif role.change_members(after):
            log.info("replication: an operator makes {members} the members of the cluster", members=str(after))

    def _check_copies(self, role: Role, before: Members, after: Members, now: float) -> None:
        """Refuse to remove a server that has one of the last two copies of the trimmed part of the log.

        A silent server may be removed: its copy is lost anyway, whether it is a member or not.
        """
        present = {peer.name for peer in self.peers.heard_since(now - SILENT)} | {role.writer.name}
        leaving = present & {*before.names} - {*after.names}
        reported = {name: peer.reported for name, peer in self.peers.others.items()}
        if leaving and not role.is_on_two(after, reported):
            raise FyrehoseError(
                f"{leaving.pop()} has to stay a member until two others have the trimmed entries on disk; start or "
                "replace those that are behind first, or run the command again in a moment"
            )

    def fill_places(self, role: Role, now: float) -> None:
        """Add a server that has just sent a message, while the list has free places."""
        members = role.members
        if not members.places or role.changes_members:
            return
        for peer in self.peers.heard_since(now - PRESENT):
            if peer.name not in members.names and not peer.leaving:
                role.change_members(members.added(peer.name))
                return
