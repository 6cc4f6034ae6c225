"""A table of the fingerprints of events that writers may send again, in 16 bytes each.

    in:  fingerprints of a group of records      out: for each fingerprint of a publish, the group that has it

A slot of the table is a fingerprint of 96 bits and the number of a group (``fyrehose.kernels.lumberjack``).  The hash
has a secret key, so no writer can make two events with one fingerprint; by chance one of 10^22 events has that of an
entry in a table of a million.  Forgetting a group only takes its number away: its slots stay in the table.

A table that is full is replaced by one without the slots of such groups, which is larger if it has to be.  The slots
move *in steps*, :data:`PACE` with each fingerprint that is entered, so that no step takes long; until all have moved,
both tables are searched.  An eighth of a table is enough for what is entered meanwhile.

The invariant is that a fifth of the slots is free: those of living groups and of groups that were forgotten since the
table began are at most four fifths (:meth:`Ledger.enter` makes room before it enters any).  So each search ends at a
free slot; the kernel asserts that, because a count that is wrong would make it search for ever.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Generic, TypeVar

import attrs

from fyrehose.kernels import lumberjack as kernel
from fyrehose.kernels.pure.lumberjack import FINGERPRINT, SLOT, Table
from fyrehose.records import Run

G = TypeVar("G", bound=Hashable)
#: Memory that is charged for each fingerprint, in bytes: a slot, and its share of those that have to be free.
ENTRY = SLOT * 5 // 4
#: Slots of the first table; each further one has four times as many, up to the limit.
FIRST_SLOTS = 1 << 14
#: How many slots of a table that is being replaced move with each fingerprint that is entered.
PACE = 12

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


def _table(slots: int) -> mmap:
    """Return memory of the operating system, which is zero without being written: that would take time, too.

    It comes in large pages, because freeing 64 MiB in small ones takes 6 ms, for which everything else waits.
    """
    table = mmap(-1, slots * SLOT, MAP_PRIVATE | MAP_ANONYMOUS)
    with suppress(OSError):  # the kernel was built without large pages
        table.madvise(MADV_HUGEPAGE)
    return table


@attrs.define(eq=False)
class Ledger(Generic[G]):
    """The table of fingerprints.

    :ivar capacity: how many fingerprints the table holds at most
    :ivar charge: called with the change of the memory that the table takes, in bytes
    """

    capacity: int
    charge: Callable[[int], object] = lambda size: None
    _slots: Table = attrs.field(factory=bytearray, init=False)
    #: the table that is being replaced, and how many of its slots have moved
    _old: Table = attrs.field(factory=bytearray, init=False)
    _moved: int = attrs.field(default=0, init=False)
    _numbers: dict[G, int] = attrs.field(factory=dict, init=False)
    #: by number: the group, its number, and how many fingerprints it has entered; None, 0 and 0 if it was forgotten
    _groups: list[G | None] = attrs.field(factory=lambda: [None], init=False)
    _living: array[int] = attrs.field(factory=lambda: array("I", [0]), init=False)
    _counts: list[int] = attrs.field(factory=lambda: [0], init=False)
    #: how many fingerprints the groups have entered, and those that were forgotten since the table began
    _entered: int = attrs.field(default=0, init=False)
    _dead: int = attrs.field(default=0, init=False)
    #: the numbers of forgotten groups: those that no slot has, those that only the old table has, and others
    _free: list[int] = attrs.field(factory=list, init=False)
    _leaving: list[int] = attrs.field(factory=list, init=False)
    _gone: list[int] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        """Return how many fingerprints the table holds."""
        return self._entered

    def __contains__(self, group: G) -> bool:
        return group in self._numbers

    def enter(self, group: G, found: bytes) -> bool:
        """Enter the fingerprints *found* of *group*; return False if there is no room for them."""
        count = len(found) // FINGERPRINT
        if not self._make_room(count):
            return False
        number = self._numbers.get(group) or self._add(group)
        entered = kernel.remember(self._slots, found, number)
        self._counts[number] += entered
        self._entered += entered
        self._move(PACE * count)
        return True

    def find(self, found: bytes) -> list[G | None] | None:
        """Return the group of each of the fingerprints *found*, or None; no list if the table has none of them."""
        columns = [column for table in (self._slots, self._old) if (column := kernel.recall(table, found))]
        if not columns:
            return None
        numbers, *older = (memoryview(column).cast("I") for column in columns)
        groups = self._groups
        return [groups[new or old] for new, old in zip(numbers, *older or [numbers], strict=True)]

    def forget(self, groups: Collection[G]) -> None:
        """Find none of the fingerprints of *groups* any more."""
        for group in groups:
            number = self._numbers.pop(group, None)
            if number is not None:
                count, self._counts[number] = self._counts[number], 0
                self._entered -= count
                self._dead += count
                self._groups[number], self._living[number] = None, 0
                self._gone.append(number)
        if not self._numbers and self._slots:
            self._drop_old()
            self._old, self._slots = self._slots, bytearray()
            self._drop_old()
            self._groups, self._living, self._counts, self._dead = [None], array("I", [0]), [0], 0
            self._free, self._gone = [], []

    def _add(self, group: G) -> int:
        """Give *group* a number that no slot has, and return it."""
        if not self._free:
            self._free.append(len(self._groups))
            self._groups.append(None)
            self._living.append(0)
            self._counts.append(0)
        number = self._free.pop()
        self._groups[number], self._living[number], self._numbers[group] = group, number, number
        return number

    def _make_room(self, count: int) -> bool:
        """Return whether *count* more fingerprints fit into the table, which may be replaced for them."""
        needed = self._entered + count
        if needed + self._dead <= len(self._slots) // ENTRY:
            return True
        self._move(len(self._old))
        slots, most = len(self._slots) // SLOT, self.capacity * ENTRY // SLOT + 1
        while slots < most and needed > slots * SLOT // ENTRY * 7 // 8:
            slots = min(most, max(FIRST_SLOTS, 4 * slots))
        if needed > slots * SLOT // ENTRY:
            return False
        self._old, self._slots = self._slots, _table(slots)
        self._moved, self._dead = 0, 0
        self._leaving, self._gone = self._gone, []
        self.charge(len(self._slots))
        return True

    def _move(self, slots: int) -> None:
        """Move the next *slots* slots of the table that is being replaced; forget that table when all have moved."""
        if not self._old:
            return
        part = memoryview(self._old)[SLOT * self._moved : SLOT * (self._moved + slots)]
        kernel.retain(part, self._slots, memoryview(self._living).cast("B"))
        self._moved += slots
        if SLOT * self._moved >= len(self._old):
            self._drop_old()

    def _drop_old(self) -> None:
        self.charge(-len(self._old))
        self._old = bytearray()
        self._free += self._leaving
        self._leaving = []
