"""The server that `fyrehose doctor` examines, and the order of the examination."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from fyrehose.cli import doctor_config, doctor_journal, doctor_machine
from fyrehose.cli.doctor_config import ConfigSource
from fyrehose.cli.findings import Finding, Level
from fyrehose.cli.reload import server_of
from fyrehose.cli.remote import RemoteServer
from fyrehose.cli.values import DEFAULT_URL
from fyrehose.errors import ConfigError, FyrehoseError

#: An admin listener's endpoint for which the command can build a URL.
_TCP = re.compile(r"tcp:(\d+)(?::interface=([0-9A-Za-z.\\:]+))?")
#: How long a server drains without the option server.drain, in seconds.
_DRAIN_S = 10.0


@attrs.frozen(kw_only=True)
class Patient:
    """The configuration, the journal and the backups to examine.

    :ivar file: the configuration file; None: that of the running server, or none
    :ivar data_dir: the directory of the journal; None: the one in the configuration
    :ivar backups: directories of backups, which may be *backup_age* seconds old
    :ivar url: the URL of the admin listener; None: that of the configuration
    """

    file: Path | None = None
    data_dir: Path | None = None
    backups: Sequence[Path] = ()
    backup_age: float = doctor_journal.DAY_S
    url: str | None = None
    token_file: Path | None = None
    ca: Path | None = None

    def examine(self) -> Iterator[Finding]:
        """Yield all findings, in no order of importance."""
        source, pid = None, self._pid(self.data_dir) if self.data_dir is not None else None
        try:
            source = self._source(pid)
        except ConfigError as error:
            where = str(self.file or (f"process {pid}" if pid else "defaults"))
            yield Finding(Level.ERROR, "configuration", str(error), where, "correct it: the server would not start")
        else:
            yield from doctor_config.checked(source)
        config = (source or doctor_config.configured(None, self.data_dir)).config
        directory = self.data_dir or config.data_dir
        pid = self._pid(directory)
        yield from doctor_machine.versions()
        yield from doctor_machine.clock()
        yield from doctor_machine.memory(config.server.memory)
        yield from doctor_machine.descriptors(*doctor_config.descriptors_wanted(config), pid)
        yield from doctor_machine.disk(directory, config.journal.min_free, config.journal.keep_bytes)
        yield from doctor_journal.journal(directory, pid)
        yield from doctor_journal.backups(directory, self.backups, self.backup_age)
        if pid is None and self.url is None:
            yield Finding(Level.NOTE, "server", "none has this journal open", str(directory))
            return
        yield from doctor_journal.server(self._remote(source))
        if pid is not None:
            drain_s = _DRAIN_S if config.server.drain is None else config.server.drain
            yield from doctor_journal.unit(pid, drain_s)

    def _pid(self, directory: Path) -> int | None:
        try:
            return server_of(directory)
        except (FyrehoseError, OSError):
            return None  # no journal, or no server: other findings say which

    def _source(self, pid: int | None) -> ConfigSource:
        found = None
        if self.file is None:
            found = doctor_config.running(pid) if pid is not None else None
        return found or doctor_config.configured(self.file, self.data_dir)

    def _remote(self, source: ConfigSource | None) -> RemoteServer:
        """Return the admin listener that was named, or that of the configuration."""
        url, token_file = self.url, self.token_file
        listeners = source.config.listeners if source is not None and url is None else ()
        for listener in listeners:
            found = _TCP.match(listener.endpoint) if listener.plugin.name == "admin" else None
            if found and found[1] != "0":
                host = (found[2] or "127.0.0.1").replace("\\", "")
                shown = f"[{host}]" if ":" in host else host
                url = f"http{'s' if listener.settings.tls_certificate else ''}://{shown}:{found[1]}"
                token_file = token_file or (
                    Path(listener.settings.token_file) if listener.settings.token_file else None
                )
        return RemoteServer.of(url or DEFAULT_URL, token_file, self.ca)
