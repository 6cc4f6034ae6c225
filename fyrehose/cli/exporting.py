"""``fyrehose journal export``: records of a journal as one file, which is there whole or not at all.

    ndjson         an object a line, as ``journal dump --format json`` writes it; needs nothing but Python
    parquet,arrow  columns, as Spark has them; needs pyarrow (the extra ``spark``)

A file is written beside its place and gets its name when all of it is on the disk.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from fyrehose.cli.formats import as_json
from fyrehose.errors import ConfigError, FyrehoseError, JournalGap, MissingExtra
from fyrehose.journal.offline.walk import Batch, Damaged, Extent, walk
from fyrehose.records import Run
from fyrehose.spark.selection import EVERY, Selection, bounds

#: By the endings of file names.
FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ndjson": "ndjson", ".jsonl": "ndjson"}

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")

Progress = Callable[[int, int], object]


@attrs.frozen(slots=True)
class Exported:
    """What has been written."""

    records: int
    size: int | None  #: of the file, in bytes; None of a device, a pipe, or standard output


def selected(streams: tuple[str, ...], start: str | None, end: str | None) -> Selection:
    """Which records: of streams that match one of the patterns, between two numbers or times.

    :raises ConfigError: neither a number nor a time
    """
    for option, text in (("--from", start), ("--to", end)):
        if text in ("earliest", "latest"):
            raise ConfigError(f"{option} is {text!r}, and should be a number or a time; leave it out for no bound")
    begin, stop = bounds(start, "--from"), bounds(end, "--to")
    if stop.time is not None:  # a time is the first moment that is not asked for
        stop = attrs.evolve(stop, time=stop.time - 1)
    return Selection(patterns=streams or (EVERY,), start=begin, end=stop)


def format_of(path: Path, form: str | None) -> str:
    """How the file at ``path`` is written.

    :raises ConfigError: its name does not say, and nobody else does
    :raises MissingExtra: that needs pyarrow
    """
    form = form or FORMATS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(f"{path} should end with one of {', '.join(FORMATS)}, or say --format")
    if form != "ndjson" and find_spec("pyarrow") is None:
        raise MissingExtra(f"{form} needs pyarrow: pip install fyrehose[spark]; or write --format ndjson")
    return form


def export(directory: Path, path: Path, form: str, wanted: Selection, skip_gaps: bool, progress: Progress) -> Exported:
    """Write what is ``wanted`` of the journal in ``directory`` into a file at ``path``; what was there is replaced.

    :raises JournalError: there is no journal
    :raises JournalCorrupt: it is damaged
    :raises JournalGap: numbers are missing among those that are asked for, and are not to be skipped
    :raises FyrehoseError: the file cannot be written
    """
    Extent.of(directory)  # says if there is no journal
    write = _ndjson if form == "ndjson" else _columns
    try:
        with _whole(path) as out:
            records = write(directory, out, form, wanted, skip_gaps, progress)
        named = _descriptor(path) is None and path.is_file()
        return Exported(records, path.stat().st_size if named else None)
    except OSError as error:
        said = error.strerror or error
        if error.filename is not None and directory in Path(os.fsdecode(error.filename)).parents:
            raise FyrehoseError(f"{error.filename} cannot be read: {said}") from error
        raise FyrehoseError(f"{path} cannot be written: {said}") from error


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that gets the name ``path`` in the end, and leaves nothing behind if the end is not reached.

    A device or a pipe has to stay what it is, and is written as it is.  So is standard output, be it a file: what is in
    that already, and what will be, is not ours.
    """
    descriptor = _descriptor(path)
    if descriptor is not None:
        with os.fdopen(os.dup(descriptor), "wb") as out:
            yield out
        return
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    path = path.resolve()  # else the name that is a link would be replaced, and not the file
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _terminated(), temporary.open("wb") as out:
            if path.exists():  # who may not read what is there may not read what takes its place
                os.fchmod(out.fileno(), path.stat().st_mode & 0o777)
            yield out
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        temporary.unlink(missing_ok=True)


def _descriptor(path: Path) -> int | None:
    """What ``path`` names, if it is one of our own open files and none of the file system's."""
    known = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else known


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM ends us as Ctrl-C does, by way of whoever has to tidy up."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say so
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ndjson(directory: Path, out: BinaryIO, form: str, wanted: Selection, skip_gaps: bool, progress: Progress) -> int:
    records, last = 0, dict[str, int]()
    for run in _runs(directory, wanted, progress):
        before = last.get(run.stream)
        if before is not None and run.first_seq > before + 1 and not skip_gaps:
            raise JournalGap(
                f"{run.stream!r} {before + 1}-{run.first_seq - 1} are not in the journal and never will be; "
                "--skip-gaps writes what is there"
            )
        last[run.stream] = run.last_seq
        out.write(as_json(run))
        records += len(run)
    return records


def _runs(directory: Path, wanted: Selection, progress: Progress) -> Iterator[Run]:
    extent = Extent.of(directory)
    start = extent.segments[0].base
    for found in walk(extent):
        if isinstance(found, Damaged):
            raise found.error()
        if not isinstance(found, Batch):
            continue
        progress(found.header.end - start, max(extent.durable - start, 0))
        for run in found.runs() if wanted.accepts(found.header.time) else ():
            if wanted.wants(run.stream):
                first, stop = wanted.seqs(run.stream)
                part = run.slice(max(0, first - run.first_seq), max(0, stop + 1 - run.first_seq))
                if len(part):
                    yield part


def _columns(directory: Path, out: BinaryIO, form: str, wanted: Selection, skip_gaps: bool, progress: Progress) -> int:
    """Record batches of a good size, each with all columns."""
    import pyarrow as pa

    from fyrehose.journal.offline.places import place
    from fyrehose.spark.columns import COLUMNS, arrow_schema
    from fyrehose.spark.plan import Planner
    from fyrehose.spark.reading import PartReader

    schema = arrow_schema(tuple(COLUMNS))
    where = place(str(directory))
    parts = Planner(where, wanted, skip_gaps=skip_gaps).parts()
    records = 0
    writer: Any
    if form == "parquet":
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(out, schema, compression="zstd")
    else:
        writer = pa.ipc.new_file(out, schema)
    done, total = 0, sum(part.size for part in parts)
    with writer:
        for part in parts:
            for batch in PartReader(where, part, wanted, schema, skip_gaps=skip_gaps).read():
                writer.write_batch(batch)
                records += batch.num_rows
            done += part.size
            progress(done, total)
    return records
