"""Say what this server is in its cluster at a moment, and whether it may write: the one answer for every protocol.

The gate of the journal knows the cluster, and the journal knows its disk; :attr:`.IJournal.standing` joins both.
"""

from __future__ import annotations

from enum import Enum

import attrs

from fyrehose.errors import Following, PublishError, Unreplicated


class ServerRole(Enum):
    """The part of a server in its cluster."""

    ALONE = "alone"  #: the server is in no cluster
    LEADER = "leader"  #: the server leads, or it has led and its journal was not opened again since then
    FOLLOWER = "follower"  #: another server writes the log, and this one copies it


@attrs.frozen(slots=True, eq=False)
class Standing:
    """What a server is at the moment in which this was made; ask for another one later, because ages grow.

    :ivar refusal: the error for requests that need a writable journal, which says why and what to do; None: the server
        accepts them
    :ivar leader: the address of the server that leads, as its configuration has it; empty if it is unknown, and if the
        server is alone
    :ivar age: by how many seconds the records that readers find here may be out of date; inf: unknown; None: no other
        server has newer ones
    :ivar caught_up: whether readers find here what was acknowledged, except for the last moment
    :ivar leads_alone: whether this server accepts publishes and no other server can have taken over from it
    """

    role: ServerRole = ServerRole.ALONE
    refusal: PublishError | None = attrs.field(default=None, kw_only=True)
    leader: str = attrs.field(default="", kw_only=True)
    age: float | None = attrs.field(default=None, kw_only=True)
    caught_up: bool = attrs.field(default=True, kw_only=True)
    leads_alone: bool = attrs.field(default=True, kw_only=True)

    @property
    def may_write(self) -> bool:
        """Return whether this server accepts publishes."""
        return self.refusal is None

    def check_writable(self) -> None:
        """Raise the refusal, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    @property
    def elsewhere(self) -> bool:
        """Return whether another server leads or may lead, so that only that one knows the state of leases."""
        return isinstance(self.refusal, Following | Unreplicated)

    def refusing(self, error: PublishError) -> Standing:
        """Return this standing of a server that refuses publishes with *error*; an earlier refusal counts more."""
        return self if self.refusal is not None else attrs.evolve(self, refusal=error, leads_alone=False)
