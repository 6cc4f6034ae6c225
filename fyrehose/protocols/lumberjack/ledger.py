"""A table of the fingerprints of events that writers may send again, in 16 bytes each.

    in:  fingerprints of a group of records      out: for each fingerprint of a publish, the group that has it

A slot of the table is a fingerprint of 96 bits and the number of a group (``fyrehose.kernels.lumberjack``).  The hash
has a secret key, so no writer can make two events with one fingerprint; by chance one of 10^22 events has that of an
entry in a table of a million.  The table grows as it fills, and forgetting a group only takes its number away: its
slots are left out when the table grows, or is full, the next time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Hashable
from functools import lru_cache
from hashlib import blake2b
from typing import Generic, TypeVar

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import FINGERPRINT, SLOT
from fyrehose.records import Run

G = TypeVar("G", bound=Hashable)
#: Memory that is charged for each fingerprint, in bytes: a slot, and its share of those that have to be free.
ENTRY = SLOT * 5 // 4
#: Slots of the first table; each further one has four times as many, up to the limit.
FIRST_SLOTS = 1 << 14

#: The name of Filebeat's fields, the default of the option ``identity``.
FILEBEAT = "filebeat"
_FILEBEAT = (
    ((b"agent", b"ephemeral_id"), (b"log", b"file", b"path"), (b"log", b"offset"), (b"@timestamp",)),
    ((b"@metadata", b"_id"),),
)
_EXPECTED = f"{FILEBEAT}, or up to 8 fields, such as @metadata._id or agent.id,log.file.path,log.offset,message"


@attrs.frozen
class EventIdentity:
    """Say what makes an event the same as another one, by the option ``identity``.

    :ivar text: the option as it was typed: ``filebeat``, or fields with commas between them
    """

    text: str = FILEBEAT

    def __str__(self) -> str:
        return self.text

    @property
    def whole(self) -> bool:
        """Return whether the whole event has to be the same, and not only the fields."""
        return self.text == FILEBEAT

    @property
    def alternatives(self) -> tuple[tuple[tuple[bytes, ...], ...], ...]:
        """Return the fields; an event has an identity if it has all of one alternative."""
        if self.whole:
            return _FILEBEAT
        return (tuple(tuple(key.encode() for key in field.split(".")) for field in self.text.split(",")),)


def identity(text: str) -> EventIdentity:
    """Convert the text of the option ``identity``."""
    made = EventIdentity(",".join(part.strip() for part in text.split(",")))
    paths = sum(made.alternatives, ())
    if len(paths) > 8 or any(not all(path) or len(path) > 8 or b'"' in b"".join(path) for path in paths):
        raise ValueError(_EXPECTED)
    return made


@attrs.define(eq=False)
class Fingerprints:
    """A maker of the fingerprints of events; those of different streams, and of different servers, never match."""

    identity: EventIdentity = EventIdentity()
    _secret: bytes = attrs.field(factory=lambda: os.urandom(32), init=False)
    _key_of: Callable[[str], bytes] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._key_of = lru_cache(4_096)(self._make_key)

    def of(self, run: Run) -> bytes:
        """Return a column of the fingerprints of *run*; zeros stand for an event without an identity."""
        identity = self.identity
        key = self._key_of(run.stream)
        return kernel.fingerprints(run.lengths, run.payload, identity.alternatives, identity.whole, key)

    def _make_key(self, stream: str) -> bytes:
        return blake2b(stream.encode(), key=self._secret, digest_size=32).digest()


@attrs.define(eq=False)
class Ledger(Generic[G]):
    """The table of fingerprints.

    :ivar capacity: how many fingerprints the table holds at most
    :ivar charge: called with the change of the memory that the table takes, in bytes
    """

    capacity: int
    charge: Callable[[int], object] = lambda size: None
    _slots: bytearray = attrs.field(factory=bytearray, init=False)
    _used: int = attrs.field(default=0, init=False)
    #: the groups by their numbers, which ascend until the table is replaced, and the number of each
    _groups: dict[int, G] = attrs.field(factory=dict, init=False)
    _numbers: dict[G, int] = attrs.field(factory=dict, init=False)
    _last: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """Return how many fingerprints the table holds, including those of groups that were forgotten lately."""
        return self._used if self._groups else 0

    def __contains__(self, group: G) -> bool:
        return group in self._numbers

    def enter(self, group: G, found: bytes) -> bool:
        """Enter the fingerprints *found* of *group*; return False if there is no room for them."""
        count = len(found) // FINGERPRINT
        if not self._make_room(count):
            return False
        number = self._numbers.get(group)
        if number is None:
            self._last = number = self._last + 1
            self._groups[number], self._numbers[group] = group, number
        self._used += kernel.remember(self._slots, found, number)
        return True

    def find(self, found: bytes) -> list[G | None] | None:
        """Return the group of each of the fingerprints *found*, or None; no list if the table has none of them."""
        column = kernel.recall(self._slots, found)
        if not column:
            return None
        numbers = memoryview(column).cast("I")
        groups = {number: self._groups.get(number) for number in set(numbers)}
        return [groups[number] for number in numbers]

    def forget(self, groups: Collection[G]) -> None:
        """Find none of the fingerprints of *groups* any more."""
        for group in groups:
            number = self._numbers.pop(group, None)
            if number is not None:
                del self._groups[number]
        if not self._groups and self._slots:
            self._replace(0)

    def _make_room(self, count: int) -> bool:
        """Return whether *count* more fingerprints fit into the table, which may become larger for them."""
        if self._used + count <= len(self._slots) // ENTRY:
            return True
        if self._slots:
            self._replace(len(self._slots) // SLOT)
        most = self.capacity * ENTRY // SLOT + 1
        while self._used + count > len(self._slots) // ENTRY:
            slots = len(self._slots) // SLOT
            if slots >= most:
                return False
            self._replace(min(most, max(FIRST_SLOTS, 4 * slots)))
        return True

    def _replace(self, slots: int) -> None:
        """Move the fingerprints of the living groups to a table of *slots* slots."""
        before, self._slots, self._used = self._slots, bytearray(SLOT * slots), 0
        if self._groups and slots:
            first = next(iter(self._groups))
            numbers = array("I", bytes(4 * (self._last + 1 - first)))
            for number, old in enumerate(self._groups, 1):
                numbers[old - first] = number
            self._used = kernel.retain(before, self._slots, numbers.tobytes(), first)
        self._groups = dict(enumerate(self._groups.values(), 1))
        self._numbers = {group: number for number, group in self._groups.items()}
        self._last = len(self._groups)
        self.charge(len(self._slots) - len(before))
