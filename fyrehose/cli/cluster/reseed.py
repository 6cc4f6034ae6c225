"""``fyrehose cluster reseed``: begin a new shared log with the journal of one server."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import click

from fyrehose.cli.cluster import survey as cluster
from fyrehose.cluster.entries import EntryKind, EntryWriter, LogEntry
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.cluster.stream import begin_again
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.imports import NATS
from fyrehose.journal import scan
from fyrehose.journal.exchange import Handover
from fyrehose.journal.files import Files
from fyrehose.journal.follower import REPLICA, SetAside, bring_back, continuing
from fyrehose.journal.recovery import Recovered, recover
from fyrehose.journal.settings import JournalSettings
from fyrehose.journal.writer import Writer
from fyrehose.offline.changing import changing
from fyrehose.options import counted


@click.command(short_help="Begin a new shared log with the journal of this server.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    required=True,
    help="Configuration file of the server with the longest journal.",
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Its data directory.  [default: as in the file]")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reseed(config: Path, data_dir: Path | None, yes: bool) -> None:
    """Begin a new shared log with the journal of this server, after the old one was lost.

    Stop all servers first. What other servers have beyond the end of this journal is lost, so choose the server with
    the longest journal: the command shows where that journal ends, including the files set aside that continue it, and
    asks before it changes anything.

    \b
        fyrehose cluster reseed --config /etc/fyrehose/fyrehose.toml
    """
    NATS.require("this command")
    settings, directory = _server(config, data_dir)
    with changing(directory, "cannot be used for a new shared log"):
        journal = recover(directory, Files())
        aside = continuing(directory, journal.position, journal.identity, journal.chain)
        end = aside[-1].end if aside else journal.position
        found = asyncio.run(cluster.survey(settings))
        if found.servers:
            names = ", ".join(str(said.get("name")) for said in found.servers)
            raise FyrehoseError(f"stop all servers of the cluster first; running: {names}")
        left = int(found.log["last"]) - int(found.log["first"]) + 1 if found.log and found.log["last"] else 0
        click.echo(
            f"the journal of server {settings.name} ends at position {end} "
            f"({_parts(directory, journal.position, aside)}); the shared log of cluster {settings.cluster} has "
            f"{counted(left, 'entry', 'entries')}, to be deleted"
        )
        if not yes:
            click.confirm("begin a new shared log at this position?", abort=True)
        # This epoch is larger than any number of take-overs, so that no entry of the old log's servers is accepted.
        epoch = int(time.time())
        writer = EntryWriter(settings.name, int.from_bytes(os.urandom(8), "little"))
        identity, chain = _keep(directory, journal, aside)
        first = LogEntry(EntryKind.TAKEOVER, epoch, writer, end, identity=identity, chain=chain, after=chain)
        asyncio.run(begin_again(settings, first))
    click.echo(f"the shared log begins at position {end}; start this server, then the others")


def _server(config: Path, data_dir: Path | None) -> tuple[ReplicationSettings, Path]:
    """Return the options and the data directory of the server with the configuration file *config*."""
    from fyrehose.server.config import read_file  # Other commands start sooner without the configuration of servers.

    content = read_file(config)
    if content.replication is None:
        raise ConfigError(f"{config} has no table [replication], so its server belongs to no cluster")
    if data_dir is None and content.data_dir is None:
        raise ConfigError(f"{config} has no data-dir; pass --data-dir DIR, as to the server")
    directory = data_dir or Path(content.data_dir or "")
    if not (directory / REPLICA).exists():
        raise ConfigError(
            f"{directory} has never been the journal of a server of a cluster: start its server, which "
            "begins the shared log if there is none"
        )
    return content.replication, directory


def _parts(directory: Path, end: int, aside: list[SetAside]) -> str:
    """Return as text what the new journal consists of: the log up to *end*, and the files *aside* that continue it."""
    mark = scan.look_at_mark(directory, Files())
    known = "an unknown position" if mark.copied or mark.begin is None else f"position {mark.durable}"
    more = "".join(f", {each.path.name} to {each.end}" for each in aside)
    return f"its durable mark is at {known}, whole batches reach to {end}{more}"


def _keep(directory: Path, journal: Recovered, aside: list[SetAside]) -> tuple[bytes, int]:
    """Move the files *aside* back into the journal, and set the durable mark behind the last whole batch.

    :return: the identity of the journal, and the checksum from which it continues
    """
    files = Files()
    # Pass a handover, because a journal that is opened with one appends nothing to its log.
    writer = Writer(directory, journal, JournalSettings().segment_size, files=files, handover=Handover())
    try:
        writer.open(journal.time)
        bring_back(writer, aside, files)
        writer.note()
        return writer.identity, writer.chain
    finally:
        writer.close(in_order=False)
