"""``fyrehose journal``: look into a journal's files, whether a server has them open or not."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fyrehose.cli.backup import backup, restore
from fyrehose.cli.progress import progress_bar
from fyrehose.errors import JournalCorrupt
from fyrehose.records import LAST_SEQ

#: How much of a payload is shown in a line of text, in bytes.
SHOWN = 200
#: The narrowest terminal, in columns, that has room for the times of a stream beside its numbers.
WIDE = 100
#: How many problems are told one by one.
TOLD = 50

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
_EVERYTHING = click.option("--all", "everything", is_flag=True, help="What is not known to be durable, too.")


@click.group()
def journal() -> None:
    """Verify, show, count, export and back up the journal in DIR (the server's --data-dir).

    All of them work while a server is writing, change nothing there, and end with status 3 where something is damaged.

    \b
        fyrehose journal stats data
    """


@journal.command()
@_EVERYTHING
@_DIRECTORY
def verify(directory: Path, everything: bool) -> None:
    """Check every byte: checksums, the numbers of every stream, indexes.

    \b
        fyrehose journal verify data
    """
    from fyrehose.journal.offline.verify import verify as verified

    with progress_bar(f"verifying {directory}") as progress:
        report = verified(directory, progress, everything)
    for note in report.notes:
        click.echo(f"note: {note}")
    for gap in report.gaps[:TOLD]:
        click.echo(f"gap: {escaped(gap.stream) or 'every other stream'} has no {gap.first} to {gap.last}")
    if len(report.gaps) > TOLD:
        click.echo(f"gap: and {len(report.gaps) - TOLD} more")
    for problem in report.problems[:TOLD]:
        click.echo(f"damaged: {problem}")
    click.echo(
        f"{'DAMAGED' if report.problems else 'OK'}: {report.records:,} records of {report.streams:,} streams verified, "
        f"in {report.batches:,} batches and {report.segments:,} segments, {report.size:,} bytes up to position "
        f"{report.end}"
        f"{f' ({report.allocated >> 20} MiB preallocated)' if report.allocated >> 20 else ''}"
    )
    if report.problems:
        raise JournalCorrupt(f"{directory} is damaged in {len(report.problems)} places")


@journal.command()
@click.option("--stream", metavar="NAME", help="Of this stream only.")
@click.option("--from", "first", type=click.IntRange(1, LAST_SEQ), default=1, help="From this number of the stream on.")
@click.option("--limit", type=click.IntRange(0), help="So many records, runs or batches at the most.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--what", type=click.Choice(["records", "runs", "batches"]), default="records", show_default=True)
@_EVERYTHING
@_DIRECTORY
def dump(
    directory: Path, stream: str | None, first: int, limit: int | None, form: str, what: str, everything: bool
) -> None:
    """Write what is in it to standard output, in the order in which it was accepted.

    \b
        fyrehose journal dump data --stream log --from 1000 --limit 10
        fyrehose journal dump data --format json | jq -r .payload
        fyrehose journal dump data --what batches
    """
    from fyrehose.journal.offline import dump as dumping

    if first > 1 and stream is None:
        raise click.UsageError("--from counts in a stream: say --stream, too")
    if what == "batches" and stream is not None:
        raise click.UsageError("a batch has many streams: --stream goes with records or runs")
    if what == "batches":
        lines = (_batch_line(batch, form) for batch in dumping.batches(directory, everything))
    elif what == "runs":
        lines = (_run_line(run, form) for run in dumping.runs(directory, stream, first, None, everything))
    else:
        found = dumping.runs(directory, stream, first, limit, everything)
        lines, limit = (_records(run, form) for run in found), None
    out = sys.stdout.buffer
    for count, line in enumerate(lines):
        if limit is not None and count >= limit:
            break
        out.write(line)
    out.flush()


@journal.command()
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@_EVERYTHING
@_DIRECTORY
def stats(directory: Path, form: str, everything: bool) -> None:
    """Count segments, bytes, and the records of every stream.

    \b
        fyrehose journal stats data --format json | jq .records
    """
    from fyrehose.journal.offline.dump import stats as counted

    with progress_bar(f"reading {directory}") as progress:
        found = counted(directory, progress, everything)
    if form == "json":
        click.echo(json.dumps(_as_json(found), ensure_ascii=False))
    else:
        _show(found)
    if found.damaged:
        raise found.damaged[0].error()


@journal.command()
@click.option("--stream", "streams", multiple=True, metavar="PATTERN", help="Of streams like this, such as 'log.*'.")
@click.option("--from", "start", metavar="SEQ|TIME", help="From this number of each stream on, or from this time.")
@click.option("--to", "end", metavar="SEQ|TIME", help="Up to this number, or before this time (UTC).")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "arrow", "ndjson"]), help="If FILE's name is not clear."
)
@click.option("--skip-gaps", is_flag=True, help="Numbers that are not in the journal are no error.")
@_DIRECTORY
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def export(
    directory: Path,
    file: Path,
    streams: tuple[str, ...],
    start: str | None,
    end: str | None,
    form: str | None,
    skip_gaps: bool,
) -> None:
    """Write records of the journal in DIR into FILE: Parquet, Arrow or NDJSON.

    FILE appears when it is whole; - is standard output. Parquet and Arrow need pyarrow.

    \b
        fyrehose journal export data all.parquet
        fyrehose journal export data a.ndjson --stream 'log.*' --from 2026-01-31
    """
    from fyrehose.cli import exporting

    chosen = exporting.format_of(file, form)
    wanted = exporting.selected(streams, start, end)
    with progress_bar(f"exporting {directory}") as progress:
        written = exporting.export(directory, file, chosen, wanted, skip_gaps, progress)
    size = "" if written.size is None else f", {written.size} bytes"
    click.echo(f"{written.records} records{size} in {file}", err=written.size is None)


@journal.command()
@click.option("--listen", "place", default="127.0.0.1:8120", show_default=True, metavar="HOST:PORT")
@click.option("--token-file", default="", metavar="FILE", help="Its first line is the token that clients have to send.")
@click.option(
    "--hosts",
    default="",
    metavar="NAME,...",
    help="Names that it may be asked for by; else, on loopback, localhost only.",
)
@_DIRECTORY
def serve(directory: Path, place: str, token_file: str, hosts: str) -> None:
    """Serve the journal's files over HTTP, from this process and not from the one that takes messages in.

    Spark reads them: spark.read.format("fyrehose").load("http://HOST:PORT").  A client that can connect can read
    everything, so an address that others can reach needs a token.  The token is not encrypted on the way: put a proxy
    with TLS in front where the network is not yours.

    \b
        fyrehose journal serve data --listen 127.0.0.1:8120
        fyrehose journal serve data --listen 10.0.0.5:8120 --token-file token
    """
    from fyrehose.cli import running
    from fyrehose.cli.serving import serve as serving

    names = tuple(name.strip().lower() for name in hosts.split(",") if name.strip())
    sys.exit(running.run(lambda reactor: serving(reactor, directory, place, token_file, names)))


@journal.command()
@click.option("--release", metavar="NAME", help="Remove this hold, so that retention ignores its reader.")
@_DIRECTORY
def holds(directory: Path, release: str | None) -> None:
    """List the retention holds, and how many bytes each is behind the end of the log.

    External readers such as an archive or a backup register them, so that retention keeps what they have not read.

    \b
        fyrehose journal holds data
        fyrehose journal holds data --release archive
    """
    from fyrehose.journal import holds as retention_holds
    from fyrehose.journal.offline.view import durable_mark

    if release is not None:
        known = retention_holds.release(directory, release)
        click.echo(f"retention hold {release} {'released' if known else 'is not registered'}")
        return
    mark = durable_mark(directory)
    found = retention_holds.registered(directory)
    if not found:
        click.echo("fyrehose: no retention holds are registered", err=True)
    for hold in found:
        behind = max(0, mark - hold.position)
        click.echo(f"{hold.name} position={hold.position} behind={behind} updated={moment(hold.time)}")


def escaped(text: str) -> str:
    """``text`` without anything that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def moment(time: int) -> str:
    """Microseconds since 1970 as people write them, in UTC."""
    return datetime.fromtimestamp(time / 1_000_000, UTC).isoformat(timespec="microseconds") if time else "-"


def _records(run: Any, form: str) -> bytes:
    from fyrehose.cli.formats import as_json

    if form == "json":
        return as_json(run)
    return b"".join(_record_line(record) for record in run.records())


def _record_line(record: Any) -> bytes:
    payload = escaped(record.payload[:SHOWN].decode(errors="backslashreplace"))
    more = f" ... ({len(record.payload)} bytes)" if len(record.payload) > SHOWN else ""
    labels = " ".join(escaped(label) for label in (record.source, record.producer, record.topic) if label)
    return f"{escaped(record.stream)} {record.seq} {moment(record.time)} [{labels}] {payload}{more}\n".encode()


def _run_line(run: Any, form: str) -> bytes:
    known = {
        "stream": run.stream,
        "first": run.first_seq,
        "last": run.last_seq,
        "time": run.time,
        "source": run.source,
        "producer": run.producer,
        "topic": run.topic,
        "content_type": run.content_type,
        "size": len(run.payload),
    }
    return _line(known, form)


def _batch_line(batch: Any, form: str) -> bytes:
    header = batch.header
    known = {
        "position": header.position,
        "kind": header.kind.name.lower(),
        "end": header.end,
        "parts": header.parts,
        "records": header.records,
        "durable": header.durable,
        "time": header.time,
        "mended": header.mended or None,
    }
    if form == "json" and (entries := batch.entries()):
        known["entries"] = [[entry.stream, entry.first, entry.last] for entry in entries]
    return _line(known, form)


def _line(known: dict[str, Any], form: str) -> bytes:
    known = {name: value for name, value in known.items() if value is not None}
    if form == "json":
        return json.dumps(known, ensure_ascii=False).encode() + b"\n"
    shown = {name: moment(value) if name == "time" else escaped(str(value)) for name, value in known.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items()).encode() + b"\n"


def _as_json(found: Any) -> dict[str, Any]:
    return {
        "segments": found.segments,
        "size": found.size,
        "mark": found.mark,
        "end": found.end,
        "batches": found.batches,
        "records": found.records,
        "closed": found.closed,
        "damaged": len(found.damaged),
        "streams": {
            name: {
                "records": of.records,
                "first": of.first,
                "last": of.last,
                "missing": of.missing,
                "size": of.size,
                "began": of.began,
                "ended": of.ended,
            }
            for name, of in sorted(found.streams.items())
        },
    }


def _show(found: Any) -> None:
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    from fyrehose.cli.listing import terminal

    console = terminal()
    times = console.width >= WIDE
    table = Table(box=None, pad_edge=False)
    table.add_column("stream", overflow="fold")
    for name in ("records", "first", "last", "missing", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("from", "to") if times else ():
        table.add_column(name, no_wrap=True)
    for name, of in sorted(found.streams.items()):
        numbers = [*map(str, (of.records, of.first, of.last, of.missing)), decimal(of.size)]
        when = [moment(time)[:19] for time in (of.began, of.ended)] if times else []
        table.add_row(Text(escaped(name)), *numbers, *when)
    if found.streams:
        console.print(table)
        console.print()
    how = "closed in order" if found.closed else "in use, or not closed in order"
    console.print(
        f"{found.segments} segments, {decimal(found.size)}, {found.batches} batches, {found.records} records, "
        f"{len(found.streams)} streams; log read up to position {found.end} ({how})",
        highlight=False,
        soft_wrap=True,
    )


journal.add_command(backup)
journal.add_command(restore)
