"""The options of the backbone server; docs/protocols/backbone.md explains the limits."""

from __future__ import annotations

import attrs

from fyrehose.options import Network, boolean, count, fixed, name, networks, option, size


@attrs.frozen(kw_only=True)
class BackboneSettings:
    """The options ``--option backbone.NAME=VALUE``."""

    stream: str = option("backbone", name, "the stream to publish to and deliver from")
    subscribers: int = option(1_024, count, "maximum number of clients; further KEEPALIVEs get no ACK", least=1)
    push_rate: int = option(
        50_000,
        count,
        "PUSH datagrams per second from one address; twice as many records for REQUESTs of a client",
        least=1,
    )
    destination_rate: int = option(64 << 20, size, "bytes per second to one address", least=1)
    trusted: tuple[Network, ...] = option(
        networks("127.0.0.0/8"), networks, "networks whose source addresses outsiders cannot forge; no rations there"
    )
    total_length: bool = option(False, boolean, "accept PUSH datagrams whose LENGTH includes the header, too")
    forward_rate: int = fixed(1_000)  #: REQUESTs per second that clients may answer; the journal answers further ones
    receive_buffer: int = fixed(4 << 20)  #: size of the socket's receive buffer, in bytes
    batching: bool = fixed(True)  #: send and receive many datagrams per system call if the kernel supports it

    @property
    def request_rate(self) -> int:
        """Return how many records per second the REQUESTs of one client may ask for; a REQUEST counts as 20 more."""
        return 2 * self.push_rate
