"""Damage the files of a journal while no server runs: change bits below the durable mark, or add a stray file.

`flip(tree, mark, dice)` changes the files of the tree and returns a `Damage`, which names the records that were hit.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import attrs
from synced import batch_at

from fyrehose.journal import format as fmt
from fyrehose.journal.scan import INDEX_SUFFIX, MARK_NAME, SUFFIX
from tests.doubles.disk import Tree

#: The share of damages that add a stray file instead of changing bits.
STRAYS = 0.15


@attrs.define
class Damage:
    """Damage to the file *name*.

    :ivar matters: whether a server must refuse to start with it
    :ivar lost: (stream, first, last) of the records in the batches that it touches
    :ivar stray: whether it is an added file that is not part of the log, but overlaps a segment of the log
    """

    name: str
    offset: int
    was: bytes
    became: bytes
    matters: bool
    lost: list[tuple[str, int, int]] = attrs.field(factory=list)
    in_batch: bool = False
    stray: bool = False

    def __str__(self) -> str:
        return f"{len(self.was)} bytes at {self.offset} of {self.name}, where {self.lost or 'no record'} lay"

    def has(self, stream: str, seq: int) -> bool:
        """Return whether the record *seq* of *stream* was in a damaged batch."""
        return any(name == stream and first <= seq <= last for name, first, last in self.lost)

    def undo(self, tree: Tree) -> None:
        """Restore the undamaged file."""
        if self.stray:
            del tree.names[self.name]
            return
        content = tree.contents[tree.names[self.name]]
        content[self.offset : self.offset + len(self.was)] = self.was

    def is_set_aside(self, directory: Path) -> bool:
        """Return whether quarantine kept a copy of the damaged file in *directory*."""
        return not self.in_batch or any(
            self.became in path.read_bytes() for path in directory.glob("quarantine-*.bytes")
        )


@attrs.frozen
class _Batch:
    """A batch of a segment, by its offsets in the file; the first one stands for the segment's header."""

    name: str
    start: int
    stop: int
    position: int
    durable: int
    lost: list[tuple[str, int, int]]


def flip(tree: Tree, mark: int, dice: Random) -> Damage | None:
    """Change bits of one file of *tree*, mostly of a segment, below the durable mark.

    :param mark: the durable mark, according to the file MARK
    :return: None if nothing was durable
    """
    caches = sorted(name for name in tree.names if name == MARK_NAME or name.endswith(INDEX_SUFFIX))
    if caches and dice.random() < 0.15:
        name = dice.choice(caches)
        size = len(tree.contents.get(tree.names[name], b""))
        return _change(tree, name, dice.randrange(size), 1, dice) if size else None
    batches = _batches(tree)
    durable = max([mark, *(batch.durable for batch in batches)])
    batches = [batch for batch in batches if batch.position + batch.stop - batch.start <= durable]
    if not batches:
        return None
    if dice.random() < STRAYS:
        return _stray(tree, dice.choice(batches), dice)
    # Half of the time, choose by the number of bytes, so that large bodies are hit, too.
    weights = [batch.stop - batch.start for batch in batches] if dice.random() < 0.5 else None
    hit = dice.choices(batches, weights)[0]
    at = dice.randrange(hit.start, hit.stop)
    count = dice.choice((1, 1, 1, min(512, hit.stop - at)))
    damage = _change(tree, hit.name, at, count, dice)
    damage.matters, damage.lost, damage.in_batch = True, hit.lost, hit.start > 0
    return damage


def _stray(tree: Tree, hit: _Batch, dice: Random) -> Damage | None:
    """Add a segment of another journal under the name of one that begins within the batch *hit*."""
    if not hit.start:
        return None
    base = hit.position + dice.randrange(0, hit.stop - hit.start, 8)
    first = min(name for name in tree.names if name.endswith(SUFFIX))
    content = bytes(tree.contents[tree.names[first]])
    if dice.random() < 0.5:  # the other journal has a segment that begins at this position
        content = fmt.SegmentHeader(base, 1, 0, b"another journal!").pack() + content[fmt.SEGMENT_HEADER.size :]
    name, inode = f"{base:016x}{SUFFIX}", max(*tree.names.values(), *tree.contents) + 1
    tree.names[name], tree.contents[inode] = inode, bytearray(content)
    return Damage(name, 0, b"", content, matters=True, in_batch=True, stray=True)


def _change(tree: Tree, name: str, at: int, count: int, dice: Random) -> Damage:
    content = tree.contents[tree.names[name]]
    was = bytes(content[at : at + count])
    content[at] ^= 1 << dice.randrange(8)
    for other in range(at + 1, at + count):
        content[other] = dice.randrange(256)
    return Damage(name, at, was, bytes(content[at : at + count]), matters=False)


def _batches(tree: Tree) -> list[_Batch]:
    found = []
    for name in sorted(name for name in tree.names if name.endswith(SUFFIX)):
        content = tree.contents[tree.names[name]]
        base, size = int(name.removesuffix(SUFFIX), 16), fmt.SEGMENT_HEADER.size
        found.append(_Batch(name, 0, size, base, base, []))
        position = base + size

        def read(size: int, at: int, content: bytearray = content) -> bytes:
            return bytes(content[at : at + size])

        while (batch := batch_at(read, base, position)) is not None:
            header, body = batch
            lost = fmt.extents(body) if header.kind is fmt.Kind.RECORDS else []
            found.append(_Batch(name, position - base, header.end - base, position, header.durable, lost))
            position = header.end
    return found
