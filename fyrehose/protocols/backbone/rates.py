"""Limit rates with a token bucket for each key, in a table of bounded size.

The table forgets a bucket that is full again.  When the table is full, all new keys share one bucket, so that any
number of new keys takes a fixed amount of memory, and does not affect the keys in the table.

in: take(key, wanted, now)      out: the granted amount
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
    """Token buckets by key.

    :ivar rate: tokens per second for each key
    :ivar burst: capacity of a bucket
    :ivar most: maximum number of keys with a bucket of their own
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

    def change(self, rate: float, burst: float) -> None:
        """Use another rate and capacity from now on; buckets keep at most the new capacity."""
        self.rate, self.burst = rate, burst

    def take(self, key: Hashable, wanted: int, now: float) -> int:
        """Take up to *wanted* tokens; return the number that was taken."""
        bucket = self._bucket(key, now)
        granted = min(wanted, int(bucket.tokens))
        bucket.tokens -= granted
        return granted

    def spend(self, key: Hashable, size: int, now: float) -> bool:
        """Take *size* tokens if any token is left; the balance may become negative.  Return whether they were taken."""
        bucket = self._bucket(key, now)
        if bucket.tokens <= 0:
            return False
        bucket.tokens -= size
        return True

    def charge(self, key: Hashable, size: int, now: float) -> None:
        """Take *size* tokens, however many are left; a negative balance is a debt that the rate repays."""
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
        """Remove full buckets from the front; buckets are in the order of their last use."""
        while self._buckets:
            key, bucket = next(iter(self._buckets.items()))
            if self._level(bucket, now) < self.burst:
                return
            del self._buckets[key]
