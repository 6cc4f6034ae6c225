"""The server that `fyrehose doctor` examines, and the order of the examination."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fyrehose.cli import doctor_config, doctor_journal, doctor_machine
from fyrehose.cli.doctor_config import ConfigSource
from fyrehose.cli.findings import Finding, Level
from fyrehose.cli.reload import server_of
from fyrehose.cli.remote import DEFAULT_URL, RemoteServer
from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.net.several import place_text

#: An admin listener's endpoint for which the command can build a URL.
_TCP = re.compile(r"tcp:(\d+)(?::interface=([0-9A-Za-z.\\:]+))?")
#: How long a server drains without the option server.drain, in seconds.
_DRAIN_S = 10.0


def examine(
    file: Path | None = None,
    data_dir: Path | None = None,
    backups: Sequence[Path] = (),
    backup_age: float = doctor_journal.DAY_S,
    url: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
) -> Iterator[Finding]:
    """Yield all findings about a server, in no order of importance.

    :param file: the configuration file; None: that of the running server, or none
    :param data_dir: the directory of the journal; None: the one in the configuration
    :param backups: directories of backups, which may be *backup_age* seconds old
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
    yield from doctor_machine.disk(directory, config.journal.min_free, config.journal.keep_bytes)
    yield from doctor_journal.journal(directory, pid)
    yield from doctor_journal.backups(directory, backups, backup_age)
    if pid is None and url is None:
        yield Finding(Level.NOTE, "server", "none has this journal open", str(directory))
        return
    yield from doctor_journal.server(remote(source, url, token_file, ca))
    if pid is not None:
        drain_s = _DRAIN_S if config.server.drain is None else config.server.drain
        yield from doctor_journal.unit(pid, drain_s)


def _pid(directory: Path) -> int | None:
    """Return the server that has the journal in *directory* open; None: no journal or no server, as findings say."""
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
