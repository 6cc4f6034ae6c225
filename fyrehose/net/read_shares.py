"""Divide what the connections of a listener read at once: among networks, and by each among its connections.

A connection may exceed its memory limit by what it reads at once, so all of them together read a bounded number of
bytes.  Thousands of connections of one network leave others the whole size of a read.
"""

from __future__ import annotations

import attrs

from fyrehose.broker.fairness import FairShare
from fyrehose.net.tcp import SessionProtocol

#: Bytes that all connections of a listener together read at once.
READS = 32 << 20
#: A connection reads at least this many bytes at once, however many connections there are.
LEAST_READ = 16 << 10


@attrs.define(eq=False)
class ReadShares:
    """How much each connection reads at once; sizes are computed again when counts have changed by an eighth or more.

    :ivar total: bytes that all connections read at once, but at least LEAST_READ each
    :ivar largest: the bytes that a connection reads at once, however few there are
    :ivar connections: the connections by network
    """

    total: int
    largest: int
    connections: FairShare[SessionProtocol]
    #: among how many networks the total is divided
    _networks: int = attrs.field(default=1, init=False)
    #: among how many connections the share of each network is divided
    _counts: dict[str, int] = attrs.field(factory=dict, init=False)

    def of(self, network: str) -> int:
        """Return how many bytes a connection of *network* reads at once."""
        share = self.total // self._networks // self._counts.get(network, 1)
        return max(LEAST_READ, min(self.largest, share))

    def count(self, network: str) -> None:
        """Change the sizes of reads, if need be, because *network* has one connection more or less."""
        networks, count = len(self.connections.holders), len(self.connections.of(network))
        counted = self._counts.get(network, 0)
        before = self.of(network)
        if not count:
            self._counts.pop(network, None)
        elif 8 * abs(count - counted) >= counted:
            self._counts[network] = count
        # A network that comes and goes must not change the sizes of thousands of connections each time.
        if not self._networks // 2 <= networks <= self._networks:
            self._networks = max(networks * 9 // 8, 1)
            for each in self.connections.holders:
                self._set(each)
        elif self.of(network) != before:
            self._set(network)

    def _set(self, network: str) -> None:
        size = self.of(network)
        for connection in self.connections.of(network):
            if connection.transport is not None:
                connection.transport.bufferSize = size
