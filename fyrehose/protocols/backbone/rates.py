"""Rates: a token bucket for each key, in a table that cannot grow beyond its bound.

A bucket that is full again is forgotten.  Where the table holds as many as it may, whoever is new shares one bucket
with all others that are new: strangers in any number cost a fixed amount of memory, and take nothing from those who are
known.

in: take(key, wanted, now)      out: how much of it is granted
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import attrs


@attrs.define(slots=True)
class _Bucket:
    tokens: float
    at: float


@attrs.define(eq=False)
class Rates:
    """At the most ``rate`` a second for each key, and ``burst`` at once.

    :ivar most: how many keys are told apart
    """

    rate: float
    burst: float
    most: int = 4_096
    _buckets: OrderedDict[Hashable, _Bucket] = attrs.field(factory=OrderedDict, init=False)
    _others: _Bucket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._others = _Bucket(self.burst, 0.0)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable, wanted: int, now: float) -> int:
        """As many of ``wanted`` as are left."""
        bucket = self._bucket(key, now)
        granted = min(wanted, int(bucket.tokens))
        bucket.tokens -= granted
        return granted

    def ready(self, key: Hashable, now: float) -> bool:
        """Whether anything is left."""
        return self._bucket(key, now).tokens > 0

    def charge(self, key: Hashable, size: int, now: float) -> None:
        """Take ``size``, whatever is left: what is too much is owed, so that any size can pass once it is ready."""
        self._bucket(key, now).tokens -= size

    def _bucket(self, key: Hashable, now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            self._forget(now)
            if len(self._buckets) >= self.most:
                bucket = self._others
            else:
                bucket = self._buckets[key] = _Bucket(self.burst, now)
        else:
            self._buckets.move_to_end(key)
        bucket.tokens = self._level(bucket, now)
        bucket.at = now
        return bucket

    def _level(self, bucket: _Bucket, now: float) -> float:
        return min(self.burst, bucket.tokens + (now - bucket.at) * self.rate)

    def _forget(self, now: float) -> None:
        """Buckets in the order of their last use: those at the front are full again first, or nearly so."""
        while self._buckets:
            key, bucket = next(iter(self._buckets.items()))
            if self._level(bucket, now) < self.burst:
                return
            del self._buckets[key]
