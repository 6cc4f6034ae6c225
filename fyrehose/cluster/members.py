"""The members of a cluster: a list in the shared log, and the changes that an operator requests.

Each entry of the shared log that has no bytes of the journal has the list that is valid from that entry on.  The list
decides which servers take part, and for which servers entries are kept.  It does not affect when a message is
acknowledged: that needs the leader's disk and a majority of the NATS servers.

A new log begins with one member, the server that has written its first entry, and with free places: the next servers
that start take the places by themselves.  After that only operators change the list.

    in: a list, a change      out: another list, or why the change is refused

This module imports neither Twisted nor a clock.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import attrs

from fyrehose.errors import FyrehoseError
from fyrehose.journal.format import Damage

#: Upper bound of a member's name, in bytes.
MAX_NAME = 64
#: Limit of the number of members of a cluster, because the list is part of every checkpoint.
MAX_MEMBERS = 64
#: How many members at least must be left when a member is removed, because trimmed entries have to be on two machines.
LEAST = 2
#: Upper bound of a request to change the members, in bytes.
MAX_REQUEST = 1024

#: Why a server does not lead that an operator has asked not to.
MAINTENANCE = "it is in maintenance"

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_LIST = re.compile(rb"(\d{1,9}) (\d{1,3})((?: [A-Za-z0-9_-]{1,64})*)")


def is_name(text: str) -> bool:
    """Return whether *text* is a valid name of a server."""
    return _NAME.fullmatch(text) is not None


@attrs.frozen
class Members:
    """The list of the members of a cluster.

    :ivar version: 1, 2, 3 ...; each change of the list increases the version by one
    :ivar names: the names of the members, in the order in which they were added
    :ivar places: the number of free places, in which servers that are not listed become members by themselves
    """

    version: int
    names: tuple[str, ...]
    places: int = 0

    @classmethod
    def founded(cls, name: str, size: int) -> Members:
        """Return the list with which the server *name* begins a log of *size* members."""
        return cls(1, (name,), max(0, min(size, MAX_MEMBERS) - 1))

    def admits(self, name: str) -> bool:
        """Return whether the server *name* may take part, because it is a member or the list has a free place."""
        return name in self.names or self.places > 0

    def added(self, name: str) -> Members:
        """Return the list with *name* added, which takes a free place if there is one.

        :raises FyrehoseError: there are too many members
        """
        if name in self.names:
            return self
        if len(self.names) >= MAX_MEMBERS:
            raise FyrehoseError(
                f"the cluster has {len(self.names)} members already, and cannot have more; remove or replace one"
            )
        return Members(self.version + 1, (*self.names, name), max(0, self.places - 1))

    def removed(self, name: str) -> Members:
        """Return the list without *name*.

        :raises FyrehoseError: too few members would be left
        """
        if name not in self.names:
            return self
        if len(self.names) <= LEAST:
            raise FyrehoseError(
                f"{name} cannot be removed: {LEAST} members have to be left, because trimmed entries have to be on two "
                "machines; add or replace one first"
            )
        return Members(self.version + 1, tuple(each for each in self.names if each != name), self.places)

    def replaced(self, name: str, by: str) -> Members:
        """Return the list with *by* in the place of *name*.

        :raises FyrehoseError: *name* is not a member, or *by* is a member already
        """
        if name not in self.names and by in self.names:
            return self  # an earlier request has replaced *name* already
        if name not in self.names:
            raise FyrehoseError(f"{name} is not a member; the members are {self}")
        if by in self.names:
            raise FyrehoseError(
                f"{by} is a member already: a machine that takes the place of another one needs a name of its own, "
                "because the others believe what the old one has reported"
            )
        return Members(self.version + 1, tuple(by if each == name else each for each in self.names), self.places)

    def closed(self) -> Members:
        """Return the list without places for further servers."""
        return self if not self.places else Members(self.version + 1, self.names)

    def __str__(self) -> str:
        listed = " and ".join(filter(None, (", ".join(self.names[:-1]), *self.names[-1:])))
        if not self.places:
            return listed
        return f"{listed} ({self.places} {'place is' if self.places == 1 else 'places are'} free)"

    def pack(self) -> bytes:
        """Return the list as bytes for an entry: version, number of free places and names, separated by spaces."""
        return " ".join((str(self.version), str(self.places), *self.names)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Members:
        """Decode a list.

        :raises Damage: *data* is no list of members
        """
        found = _LIST.fullmatch(data)
        names = tuple(found[3].decode().split()) if found else ()
        if found is None or not 0 < len(set(names)) == len(names) <= MAX_MEMBERS:
            raise Damage(f"an entry of the shared log has an invalid list of members: {data[:200]!r}")
        return cls(int(found[1]), names, int(found[2]))


#: The list before the first entry of the shared log that has one, so that every server may take part.
UNLISTED = Members(0, (), MAX_MEMBERS)


class ChangeKind(Enum):
    """Kinds of requests of operators: changes of the members, and which server leads."""

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    CLOSE = "close"  #: no further server becomes a member by itself
    HAND_OVER = "hand-over"  #: the leader lets another server lead
    MAINTAIN = "maintain"  #: a server does not lead
    RESUME = "resume"  #: that server may lead again


@attrs.frozen
class MemberChange:
    """A request of an operator, which changes the members or which server leads.

    A change that is applied twice has the same effect as once, so that a request may be repeated until it is answered.

    :ivar ident: a name of the request, which the answer repeats
    :ivar version: the version of the list that the operator has seen, so that a late repetition does not change a later
        list
    :ivar name: the name of the member; empty to close the free places
    :ivar by: the name of the server that replaces the member, or that is to lead; empty: any may lead
    """

    ident: str
    version: int
    kind: ChangeKind
    name: str = ""
    by: str = ""

    def apply(self, members: Members) -> Members:
        """Return the list after the change, which is *members* itself if there is nothing to do.

        :raises FyrehoseError: the change is refused
        """
        match self.kind:
            case ChangeKind.ADD:
                after = members.added(self.name)
            case ChangeKind.REMOVE:
                after = members.removed(self.name)
            case ChangeKind.REPLACE:
                after = members.replaced(self.name, self.by)
            case ChangeKind.CLOSE:
                after = members.closed()
            case _:
                after = members  # which server leads is no property of the members
        if after != members and self.version != members.version:
            raise FyrehoseError(f"the members were changed meanwhile, and are {members} now; run the command again")
        return after

    def pack(self) -> bytes:
        """Return the message that asks the leader for this change."""
        said = {"change": self.kind.value, "id": self.ident, "name": self.name, "by": self.by}
        return json.dumps({**said, "version": self.version}).encode()

    @classmethod
    def unpack(cls, message: bytes) -> MemberChange | None:
        """Decode a request for a change; return None if *message* is not such a request."""
        if len(message) > MAX_REQUEST:
            return None
        try:
            said: Any = json.loads(message)
            kind, ident, version = ChangeKind(said["change"]), str(said["id"]), int(said["version"])
            name, by = str(said.get("name", "")), str(said.get("by", ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None
        needed = {ChangeKind.CLOSE: (), ChangeKind.REPLACE: (name, by)}.get(kind, (name,))
        valid = is_name(ident) and all(map(is_name, needed)) and (not by or is_name(by))
        return cls(ident, version, kind, name, by) if valid else None
