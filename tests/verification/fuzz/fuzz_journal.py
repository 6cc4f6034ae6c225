"""Fuzz the journal with random bytes: headers, bodies, whole segments, indexes, and subscription files.

Checksums are recomputed, so that inputs pass them; all bytes must be either read or refused as damage.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import harness

with harness.instrumented("fyrehose.journal"):
    from crc32c import crc32c

    from fyrehose.errors import JournalError
    from fyrehose.journal import format as fmt
    from fyrehose.journal import index, packing, scan, subscriptions
    from fyrehose.journal.quarantine import set_aside
    from fyrehose.journal.recovery import recover
    from fyrehose.offline.verify import verify
    from fyrehose.records import Run
    from tests.doubles.disk import WatchedFiles

STREAMS = ("s", "stream \N{SNOWMAN}", "x" * 255)
#: The directory of the journal's files; the harness deletes it.
DIRECTORY = Path(tempfile.gettempdir())
JOURNAL = DIRECTORY / "journal"


def run_of(dice: harness.Dice, first: int) -> Run:
    """Return a run of records with random columns."""
    payloads = [dice.blob() for _ in range(1 + dice.byte() % 4)]
    count = len(payloads)
    return Run.of(
        dice.choice(STREAMS),
        payloads,
        source="fuzz",
        producer=dice.choice((None, "", "p", "\udcff")),
        topic=dice.choice((None, "t" * 200)),
        content_type=dice.choice((None, "application/json")),
        producer_seq=dice.choice((None, 7, bytes(8 * count))),
        event_ids=dice.choice((None, bytes(16 * count))),
        event_times=dice.choice((None, bytes(8 * count))),
        first_seq=first,
    )


def body_of(dice: harness.Dice, kind: fmt.Kind) -> tuple[bytes, int]:
    """Return the body of a batch, sometimes damaged, and the number of parts that its header is to announce."""
    parts = 1 + dice.byte() % 3
    if kind is fmt.Kind.RECORDS:
        _, made = packing.batch(
            kind, [run_of(dice, dice.number(48)) for _ in range(parts)], position=0, durable=0, time=1, clock=1, chain=0
        )
        body = made[fmt.BATCH_HEADER.size :]
    else:
        entries = [fmt.Entry(dice.choice(("", *STREAMS)), dice.number(48), dice.number(48)) for _ in range(parts)]
        body = b"".join(entry.pack() for entry in entries)
    return dice.damaged(body), parts if not dice.one_in(9) else dice.number(32)


def sealed(dice: harness.Dice, position: int, chain: int) -> tuple[fmt.BatchHeader, bytes]:
    """Return a batch with valid checksums and random contents: its header, and all of its bytes."""
    kind = dice.choice((fmt.Kind.RECORDS, fmt.Kind.RECORDS, *fmt.Kind))
    body, parts = body_of(dice, kind) if kind is not fmt.Kind.CLOSED else (b"", 0)
    body += bytes(-len(body) % 8)
    durable = dice.choice((0, position, position, position + 8, dice.number(64) % (1 << 62)))
    header = fmt.BatchHeader(
        kind, dice.one_in(9), len(body), parts, parts, chain, position, durable, 1, 1, crc32c(body, chain)
    )
    return header, header.pack() + body


def single(data: bytes) -> None:
    """Check that headers, bodies and entries are either decoded or refused with Damage."""
    dice = harness.Dice(data)
    for source in (data, sealed(dice, 64, 0)[1]):
        for unpack in (fmt.SegmentHeader.unpack, lambda data: fmt.BatchHeader.unpack(data, 64)):
            try:
                header = unpack(source)
            except fmt.Damage:
                continue
            assert header.pack() == source[:64] or isinstance(header, fmt.SegmentHeader)
        for body in (source, source[fmt.BATCH_HEADER.size :]):
            try:
                for run in fmt.runs(body, 1):
                    assert len(run.stream) < 256
                    run.size  # noqa: B018 - reads every column
            except fmt.Damage:
                pass
            try:
                fmt.entries(body, dice.byte())
            except fmt.Damage:
                pass


def segment(data: bytes) -> None:
    """Check that a journal of batches with valid checksums either opens or is refused, the same in two starts."""
    dice = harness.Dice(data)
    JOURNAL.mkdir(exist_ok=True)
    content = fmt.SegmentHeader(0, 1, 0).pack()
    chain = 0
    for _ in range(1 + dice.byte() % 5):
        header, batch = sealed(dice, len(content), chain)
        content += batch
        chain = header.checksum if not dice.one_in(9) else 1
    content = dice.damaged(content) + bytes(dice.choice((0, 0, 64, 13)))
    for name in os.listdir(JOURNAL):  # noqa: PTH208 - the fastest
        JOURNAL.joinpath(name).unlink()
    scan.path_of(JOURNAL, 0).write_bytes(content)
    mark = dice.choice((0, 0, len(content), dice.below(len(content) + 1)))
    JOURNAL.joinpath(scan.MARK_NAME).write_bytes(dice.damaged(scan.pack_mark(mark)))
    with suppress(JournalError):  # fails if none of the bytes can be checked
        verify(JOURNAL)
    for quarantine in (False, True):
        try:
            if quarantine:
                set_aside(JOURNAL, WatchedFiles())
            found = recover(JOURNAL, WatchedFiles())
        except (JournalError, fmt.Damage):
            continue
        # Quarantine appends a note about the numbers that must not be used again, with an entry for each stream.
        note = 64 + 288 * (len(found.streams.ends) + 1) if quarantine else 0
        assert found.position <= len(content) + 64 + note
        assert recover(JOURNAL, WatchedFiles()).streams.ends == found.streams.ends, (
            "a second start finds other streams than the first one"
        )


def indexes(data: bytes) -> None:
    """Check that an index is read as it was written, and that a damaged one is rejected."""
    dice = harness.Dice(data)
    made = index.SegmentIndex(0, 1 << 20)
    seq, position = 1, 64
    for _ in range(dice.byte() % 9):
        seq, position = seq + dice.number(32), position + 8 * dice.number(16)
        made.add_run(position, dice.choice(STREAMS), seq, seq := seq + dice.byte())
    made.before["s"] = dice.number(48)
    packed = made.pack()
    for source in (packed, dice.damaged(packed)):
        found = index.PackedIndex.unpack(source, 0, 1 << 20)
        if source == packed:
            assert found is not None
        if found is None:
            continue
        for stream in (*STREAMS, "nobody"):
            assert found.last(stream) == made.last(stream)
            assert found.last_before(stream) == made.last_before(stream)
            for seq in (0, 1, dice.number(48)):
                assert found.find(stream, seq) == made.find(stream, seq)
            if (after := found.find(stream, 0)) is not None:
                after += dice.number(20)
                assert found.following(stream, after) == made.following(stream, after)


def marks(data: bytes) -> None:
    """Check that a damaged subscription file keeps its subscription, and that a damaged MARK counts as 0."""
    dice = harness.Dice(data)
    folder = DIRECTORY / subscriptions.FOLDER
    folder.mkdir(exist_ok=True)
    texts = (b'{"position": 1, "time": 2}', b'{"position": Infinity, "time": 0}', b"[" * 5000, b'{"position": "\xff"}')
    folder.joinpath("r").write_bytes(dice.choice((dice.damaged(dice.choice(texts)), data)))
    assert [each.name for each in subscriptions.registered(DIRECTORY)] == ["r"]
    folder.joinpath("r").unlink()
    folder.rmdir()
    mark = dice.number(64)
    DIRECTORY.joinpath(scan.MARK_NAME).write_bytes(dice.damaged(scan.pack_mark(mark)))
    assert scan.read_mark(DIRECTORY) in (0, mark)


DECODERS = {"single": single, "segment": segment, "indexes": indexes, "marks": marks}
