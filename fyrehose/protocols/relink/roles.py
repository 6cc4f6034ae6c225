"""Select the terms of a link that apply to us, and those that apply to the peer."""

from __future__ import annotations

import attrs

from fyrehose.protocols.relink.handshake import Terms


@attrs.define(eq=False)
class Roles:
    """The terms of a link from the point of view of one peer.

    :ivar connector: whether we are the connector
    """

    terms: Terms
    connector: bool

    @property
    def our_size(self) -> int:
        """The size of our channel ids, in bytes."""
        return self.terms.connector_size if self.connector else self.terms.listener_size

    @property
    def peer_size(self) -> int:
        """The size of the peer's channel ids, in bytes."""
        return self.terms.listener_size if self.connector else self.terms.connector_size

    @property
    def our_transactions(self) -> bool:
        """Whether our channels are transactional."""
        return self.terms.connector_transactions if self.connector else self.terms.listener_transactions

    @property
    def peer_transactions(self) -> bool:
        """Whether the peer's channels are transactional."""
        return self.terms.listener_transactions if self.connector else self.terms.connector_transactions
