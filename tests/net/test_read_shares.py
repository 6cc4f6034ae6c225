"""All connections of a listener read a bounded number of bytes at once, which networks share."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.broker.fairness import FairShare
from fyrehose.net.read_shares import LEAST_READ, READS, ReadShares
from fyrehose.net.sockets import READ
from tests.doubles.references import references


@attrs.define(eq=False)
class Connection:
    """A connection, and its transport."""

    network: str
    bufferSize: int = 0

    @property
    def transport(self) -> Connection:
        return self


@attrs.define
class Listener:
    """The connections of a listener."""

    table: FairShare[Any] = attrs.field(factory=FairShare)
    total: int = READS
    shares: ReadShares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shares = ReadShares(self.total, READ, self.table)

    def connect(self, network: str) -> Connection:
        made = Connection(network)
        self.table.add(made, network)
        self.shares.count(network)
        made.bufferSize = self.shares.of(network)
        return made

    def lose(self, connection: Connection) -> None:
        self.table.discard(connection)
        self.shares.count(connection.network)


def test_a_network_that_comes_and_goes_changes_the_sizes_of_others_once() -> None:
    listener = Listener(total=4 * READ)
    peers = [listener.connect("a") for _ in range(8)]
    listener.lose(listener.connect("b"))
    size = peers[0].bufferSize
    for each in peers:
        each.bufferSize = -1
    listener.lose(listener.connect("b"))
    assert (size, {each.bufferSize for each in peers}) == (READ // 4, {-1})


def test_connections_of_a_crowded_network_read_little_and_those_of_others_much() -> None:
    listener = Listener()
    crowd = [listener.connect("crowd") for _ in range(5_000)]
    other = listener.connect("other")
    assert (crowd[0].bufferSize, other.bufferSize) == (16 << 10, READ)
    assert READS == 32 << 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=400), st.integers(16, 26))
def test_all_connections_together_read_a_bounded_number_of_bytes_at_once(
    events: list[tuple[bool, int]], power: int
) -> None:
    """Networks share alike, and connections of a network: counts may be outdated by an eighth, networks by half."""
    listener, peers = Listener(total=1 << power), list[Connection]()
    before = references(listener.shares, listener.table)
    for connects, network in events:
        if connects or not peers:
            peers += [listener.connect("abcdefgh"[network % (1 + len(peers) % 8)]) for _ in range(network + 1)]
        else:
            listener.lose(peers.pop(network * len(peers) // 8))
        assert all(each.bufferSize == listener.shares.of(each.network) for each in peers)
        more = sum(each.bufferSize for each in peers if each.bufferSize > LEAST_READ)
        assert more <= listener.total * 9 // 8, "those with the least size are not counted"
        networks = [each.network for each in peers]
        for each in peers:
            share = listener.total // (2 * len(set(networks)) + 1) * 7 // (8 * networks.count(each.network))
            assert min(READ, share) <= each.bufferSize <= READ, "others have left, and it does not read more"
            assert each.bufferSize >= LEAST_READ
    for each in peers:
        listener.lose(each)
    assert references(listener.shares, listener.table) == before, "networks that have left are remembered"
