"""``fyrehose doctor``: look at a configuration, a journal, its server and the machine, and say what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.client.values import DEFAULT_URL, DURATION, FORMAT
from fyrehose.cli.console import escaped, table, terminal, write_json
from fyrehose.cli.doctor import cluster as doctor_cluster
from fyrehose.cli.doctor import config as doctor_config
from fyrehose.cli.doctor import journal as doctor_journal
from fyrehose.cli.doctor import machine as doctor_machine
from fyrehose.cli.doctor.config import ConfigSource
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cli.reload import server_of
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.net.several import place_text
from fyrehose.options import counted

#: An admin listener's endpoint for which the command can build a URL.
_TCP = re.compile(r"tcp:(\d+)(?::interface=([0-9A-Za-z.\\:]+))?")
#: How long a server drains without the option server.drain, in seconds.
_DRAIN_S = 10.0
_STYLES = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show(findings: Sequence[Finding], form: str) -> None:
    """Write findings as a table, the worst first, or as JSON, one object a line."""
    ordered = sorted(findings, key=lambda each: -each.level)
    if form == "json":
        write_json(*(each.as_json() for each in ordered))
        return
    console = terminal()
    console.print(table(("", "about", "finding", "what to do"), map(_row, ordered), whole=("", "about")))
    counts = [(level, sum(each.level is level for each in findings)) for level in (Level.ERROR, Level.WARNING)]
    words = " and ".join(counted(count, level.name.lower()) for level, count in counts if count)
    console.print(f"\n{words or 'nothing to do'}", highlight=False)


def _row(finding: Finding) -> tuple[str | Text, ...]:
    what = Text(escaped(finding.what))
    if finding.where:
        what.append(f"\n{escaped(finding.where)}", style="dim")
    return Text(finding.level.name.lower(), style=_STYLES[finding.level]), finding.subject, what, finding.advice


@click.command(short_help="Look for what is wrong, or soon will be.")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Configuration file.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Directory of the journal.")
@click.option("--backup", "backups", multiple=True, metavar="DIR", type=click.Path(path_type=Path))
@click.option("--backup-age", type=DURATION, default="1d", show_default=True, help="How old a backup may be.")
@click.option("--verify", "verifying", is_flag=True, help="Also check every byte of each backup.")
@click.option("--url", metavar="URL", help="Admin listener, if the configuration does not say.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with its token.")
@click.option("--ca", type=click.Path(path_type=Path), help="PEM file of its certificate authority.")
@FORMAT
@click.option("--json", "form", flag_value="json", help="The same as --format json: one finding a line.")
def doctor(form: str, **options: Any) -> None:
    """Look for present and coming problems of a server that runs, or is to be started.

    Exit status 1: there is a warning or an error.

    \b
        fyrehose doctor --data-dir /var/lib/fyrehose
        fyrehose doctor --config fyrehose.toml --backup /mnt/backup --json
    """
    findings = list(examine(**options))
    show(findings, form)
    sys.exit(1 if max(each.level for each in findings) >= Level.WARNING else 0)


def examine(
    file: Path | None = None,
    data_dir: Path | None = None,
    backups: Sequence[Path] = (),
    backup_age: float = doctor_journal.DAY_S,
    verifying: bool = False,
    url: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
) -> Iterator[Finding]:
    """Yield all findings about a server, in no order of importance.

    :param file: the configuration file; None: that of the running server, or none
    :param data_dir: the directory of the journal; None: the one in the configuration
    :param backups: directories of backups, which may be *backup_age* seconds old
    :param verifying: whether to read every byte of the backups
    :param url: the URL of the admin listener; None: that of the configuration
    """
    source, pid = None, None if data_dir is None else _pid(data_dir)
    try:
        source = doctor_config.running(pid) if file is None and pid is not None else None
        source = source or doctor_config.configured(file, data_dir)
    except ConfigError as error:
        where = str(file or (f"process {pid}" if pid else "defaults"))
        yield Finding(Level.ERROR, "configuration", str(error), where, "correct it: the server would not start")
    else:
        yield from doctor_config.checked(source)
    config = (source or doctor_config.configured(None, data_dir)).config
    directory = data_dir or config.data_dir
    pid = _pid(directory)
    yield from doctor_machine.versions()
    yield from doctor_machine.clock()
    yield from doctor_machine.memory(config.server.memory)
    yield from doctor_machine.descriptors(*doctor_config.descriptors_wanted(config), pid)
    yield from doctor_machine.disk(directory, config.journal)
    yield from doctor_journal.journal(directory, pid)
    yield from doctor_journal.backups(directory, backups, backup_age, verifying)
    if config.replication is not None:
        yield from doctor_cluster.cluster(config.replication)
    if pid is None and url is None:
        yield Finding(Level.NOTE, "server", "none has this journal open", str(directory))
        return
    yield from doctor_journal.server(remote(source, url, token_file, ca))
    if pid is not None:
        drain_s = _DRAIN_S if config.server.drain is None else config.server.drain
        yield from doctor_journal.unit(pid, drain_s)


def _pid(directory: Path) -> int | None:
    """Return the process id of the server that has the journal in *directory* open; None if there is none."""
    try:
        return server_of(directory)
    except (FyrehoseError, OSError):
        return None


def remote(
    source: ConfigSource | None, url: str | None = None, token_file: Path | None = None, ca: Path | None = None
) -> RemoteServer:
    """Return the admin listener at *url*; without a URL, the one that the configuration *source* names."""
    listeners = source.config.listeners if source is not None and url is None else ()
    for listener in listeners:
        found = _TCP.match(listener.endpoint) if listener.plugin.name == "admin" else None
        if found and found[1] != "0":
            place = place_text((found[2] or "127.0.0.1").replace("\\", ""), int(found[1]))
            url = f"http{'s' if listener.settings.tls_certificate else ''}://{place}"
            token_file = token_file or (Path(listener.settings.token_file) if listener.settings.token_file else None)
    return RemoteServer.of(url or DEFAULT_URL, token_file, ca)
