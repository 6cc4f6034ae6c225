"""Change the members while this server leads: what operators ask for, and servers that take free places.

    in: requests of `fyrehose cluster add`, `remove` and `replace`, servers that were heard
    out: changes for the role to append, and the answer to the last request

A request is repeated until it is answered, by the next leader if this one is lost: doing it again changes nothing.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError
from fyrehose.replication.members import MemberChange
from fyrehose.replication.peers import Peers
from fyrehose.replication.role import Role, State

log = Logger()

#: A server that was heard within so many seconds takes a free place.
PRESENT = 2.0


@attrs.define(eq=False)
class Membership:
    """Carries out changes of the members, one at a time.

    :ivar answer: the last request that was done or refused: its id, and why it was refused
    """

    peers: Peers
    answer: dict[str, str] = attrs.field(factory=dict, init=False)

    def ask(self, message: bytes, role: Role) -> None:
        """Do what *message* asks for, if this server leads; a change that is under way is answered later."""
        change = MemberChange.unpack(message)
        if change is None or role.state is not State.LEADER or role.members is None or role.changes_members:
            return
        try:
            after = change.apply(role.members)
        except FyrehoseError as refused:
            self.answer = {"id": change.ident, "refused": str(refused)}
            return
        if after == role.members:
            self.answer = {"id": change.ident, "refused": ""}
        elif role.change_members(after):
            log.info("replication: an operator makes {members} the members of the cluster", members=str(after))

    def fill_places(self, role: Role, now: float) -> None:
        """Add a server that was just heard, while the list has free places."""
        members = role.members
        if members is None or not members.places or role.changes_members:
            return
        for peer in self.peers.heard_since(now - PRESENT):
            if peer.name not in members.names and not peer.said.get("leaving"):
                role.change_members(members.added(peer.name))
                return
