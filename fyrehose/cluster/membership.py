"""Change the list of members while this server leads: operators request changes, and servers take free places.

    in: requests of `fyrehose cluster add`, `remove` and `replace`, servers that have sent messages
    out: changes for the role to append, and the answer to the last request

The operator's command repeats a request until this leader, or the next one, answers it; a repetition changes nothing.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from fyrehose.cluster.members import MemberChange, Members
from fyrehose.cluster.peers import Peers
from fyrehose.cluster.role import Role, State
from fyrehose.errors import FyrehoseError

log = Logger()

#: A server that has sent a message within this many seconds may take a free place.
PRESENT = 2.0
#: A member that has sent no message for this many seconds may be removed although it has bytes that others lack.
SILENT = 10.0
#: A member with one of the last two copies is refused to be removed after this many seconds: until then the request
#: waits, because others are usually behind by a moment only.  It is shorter than commands wait for an answer.
CATCH_UP = 10.0


@attrs.define(eq=False)
class Membership:
    """The changes of the list of members that the leader carries out, one at a time.

    :ivar answer: for the last request that was carried out or refused: its id, and why it was refused
    """

    peers: Peers
    answer: dict[str, str] = attrs.field(factory=dict, init=False)
    #: The request that waits until others have what the server that leaves has, and since when.
    _waits: tuple[str, float] = attrs.field(default=("", 0.0), init=False)

    def ask(self, change: MemberChange, role: Role, now: float) -> None:
        """Begin *change*, which an operator requests, if this server leads; set ``answer`` later."""
        if role.state is not State.LEADER or role.changes_members:
            return
        try:
            after = change.apply(role.members)
            if self._waits_for_copies(change, role, after, now):
                return
        except FyrehoseError as refused:
            self.answer = {"id": change.ident, "refused": str(refused)}
            return
        if after == role.members:
            self.answer = {"id": change.ident, "refused": ""}
        elif role.change_members(after):
            log.info("replication: an operator makes {members} the members of the cluster", members=str(after))

    def _waits_for_copies(self, change: MemberChange, role: Role, after: Members, now: float) -> bool:
        """Return whether *change* has to wait, because it removes one of the last two copies of the trimmed entries.

        A server that sends no messages may be removed, because its copy is unreachable whether it is a member or not.

        :raises FyrehoseError: it has waited for CATCH_UP
        """
        present = {peer.name for peer in self.peers.heard_since(now - SILENT)} | {role.writer.name}
        leaving = present & {*role.members.names} - {*after.names}
        reported = {name: peer.reported for name, peer in self.peers.others.items()}
        if not leaving or role.is_on_two(after, reported):
            return False
        if self._waits[0] != change.ident:
            self._waits = (change.ident, now)
        if now - self._waits[1] < CATCH_UP:
            return True
        raise FyrehoseError(
            f"{leaving.pop()} has to stay a member until two others have the trimmed entries on disk; start or "
            "replace those that are behind first"
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
