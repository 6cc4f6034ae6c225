"""Remember the compressed frames that a listener refused, so that a repetition is neither inflated nor stored again.

A writer sends a refused window again.  The server has stored a part of a large frame by then, and would store that part
at each attempt.  A writer of version 2 learns how much is stored, and then sends another frame: the rest.  Only a
writer that cannot continue sends the same frame.

    digest of a frame's first bytes -> known: refused      unknown: inflated; if it is refused then, remembered

A lost connection may lose the acknowledgement, and an honest writer may send equal events.  So if a part of the frame
can be acknowledged, the frame is inflated again after :data:`FIRST` seconds, and then after pauses that double.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import attrs

from fyrehose.broker.fairness import FairShare

#: How long a frame is refused without being inflated, in seconds: after its first refusal, and at most.
FIRST = 60.0
LONGEST = 86_400.0
#: The number of frames that a listener remembers; beyond that, the network with the most frames forgets its oldest.
MOST = 4_096


@attrs.define(eq=False)
class RefusedFrame:
    """A frame that was refused.

    :ivar reason: why it was refused, for the log
    :ivar pause: time from the last attempt to inflate the frame to the next one, in seconds
    :ivar until: when the frame may be inflated again (monotonic, seconds)
    """

    reason: str
    pause: float
    until: float


@attrs.define(eq=False)
class RefusedFrames:
    """The refused frames of one listener; the networks of writers have fair shares of the table.

    :ivar seconds: returns the monotonic time, in seconds
    """

    seconds: Callable[[], float]
    most: int = MOST
    _frames: dict[tuple[str, bytes], RefusedFrame] = attrs.field(factory=dict, init=False)
    #: the keys of the frames by network, the latest last
    _by_network: FairShare[tuple[str, bytes]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._by_network = FairShare(self.most)

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, network: str, digest: bytes, reason: str, *, hopeless: bool) -> None:
        """Remember a frame.

        :param hopeless: whether a repetition would be refused again, because no part of it can be acknowledged
        """
        key = (network, digest)
        before = self._frames.get(key)
        pause = inf if hopeless else FIRST if before is None else min(2 * before.pause, LONGEST)
        self._by_network.discard(key)
        for oldest in self._by_network.make_room(network):
            del self._frames[oldest]
        self._frames[key] = RefusedFrame(reason, pause, self.seconds() + pause)
        self._by_network.add(key, network)

    def reason(self, network: str, digest: bytes) -> str:
        """Return why a frame is refused without being inflated; empty if it has to be inflated."""
        key = (network, digest)
        frame = self._frames.get(key)
        if frame is None or self.seconds() >= frame.until:
            return ""
        self._by_network.renew(key)
        return frame.reason
