"""The options of replication: the table ``[replication]`` of a configuration file."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from fyrehose.client_tls import client_context
from fyrehose.cluster.members import MAX_MEMBERS, MAX_NAME, is_name
from fyrehose.errors import ConfigError
from fyrehose.options import count, duration, file_path, option, size, typed, within
from fyrehose.toml_files import Mistake


def server_name(text: str) -> str:
    """Return *text* if it is a valid name of a server or a cluster.

    :raises ValueError: *text* is not valid; the message names the expected form
    """
    if not is_name(text):
        raise ValueError(f"1 to {MAX_NAME} letters, digits, - and _")
    return text


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip() for url in text.split(",") if url.strip())
    if not urls or not all(re.match(r"(nats|tls)://[^/]+$", url) for url in urls):
        raise ValueError('addresses such as "nats://10.0.0.1:4222", separated by commas')
    return urls


def _journal(text: str) -> str:
    if text and not re.match(r"https?://[^/]+$", text):
        raise ValueError('an address such as "http://10.0.0.1:8120"')
    return text


def _members(text: str) -> int:
    number = count(text)
    if number > MAX_MEMBERS:
        raise ValueError(f"a number of members, at most {MAX_MEMBERS}")
    return number


@attrs.frozen(kw_only=True)
class ReplicationSettings:
    """The options of one server of a cluster."""

    servers: tuple[str, ...] = option((), _urls, "addresses of the NATS servers, separated by commas")
    cluster: str = option("fyrehose", server_name, "name of the cluster; the same on every server")
    name: str = option("", server_name, "name of this server, another one on each; empty: the name of its host")
    replicas: int = option(3, count, "on how many NATS servers each entry is stored", least=1)
    members: int = option(3, _members, "how many servers, the first that start, are members of a new cluster", least=1)
    takeover_after: float = option(2.0, duration, "take over when the leader was not heard for this long", least=1)
    max_staleness: float = option(
        10.0, duration, "a server is not ready for readers if it may be older than this", least=1
    )
    member_timeout: float = option(
        86400.0, duration, "do not keep entries for a server that was not heard for this long", least=60
    )
    log_limit: int = option(
        8 << 30,
        size,
        "size of the shared log beyond which servers that do not confirm are not waited for",
        least=1,
    )
    address: str = option("", str, "HOST:PORT or URL where this server accepts messages by HTTP")
    journal: str = option(
        "", _journal, "URL of `fyrehose journal serve` for this server's journal, from which others fill theirs"
    )
    token_file: str = option("", file_path, "file with the token of the other servers' `fyrehose journal serve`")
    user: str = option("", str, "name of this server's user of NATS; needs a password-file")
    password_file: str = option("", file_path, "file with the password of that user; it is read for each connection")
    credentials: str = option("", file_path, "credentials file of NATS")
    tls_authorities: str = option("", file_path, "PEM file of the certificate authority of the NATS servers")
    tls_certificate: str = option("", file_path, "PEM file with this server's certificate for NATS")
    tls_key: str = option("", file_path, "PEM file with the key of the certificate")

    @property
    def shown_servers(self) -> str:
        """Return the addresses of the NATS servers for people, without passwords."""
        return ", ".join(re.sub(r"//.*@", "//", url) for url in self.servers)

    def connect_options(self) -> dict[str, Any]:
        """Return the arguments for ``nats.connect``: the user, TLS, and the inbox to which the user may subscribe.

        :raises ConfigError: a file cannot be read, or is invalid
        """
        options: dict[str, Any] = {"inbox_prefix": f"fyrehose.{self.cluster}.inbox.{self.name or 'status'}"}
        if self.credentials:
            try:
                Path(self.credentials).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"[replication] cannot read credentials {self.credentials}: {error.strerror}"
                ) from error
            options["user_credentials"] = self.credentials
        if self.user:
            self.password()
            options |= {"user": self.user, "password": self.password}
        if self.tls_authorities or self.tls_certificate:
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        file = f"tls-authorities {self.tls_authorities}"
        try:
            context = client_context(self.tls_authorities or None)
            if self.tls_certificate:
                file = f"tls-certificate {self.tls_certificate} and tls-key {self.tls_key}"
                context.load_cert_chain(self.tls_certificate, self.tls_key)
        except OSError as error:
            why = "expected PEM files" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigError(f"[replication] cannot use {file}: {why}") from error
        return context

    def password(self) -> str:
        """Return the password in the password file.

        :raises ConfigError: the file cannot be read, or is empty
        """
        try:
            password = Path(self.password_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise ConfigError(f"[replication] cannot read password-file {self.password_file!r}: {why}") from error
        if not password:
            raise ConfigError(f"[replication] password-file {self.password_file!r} is empty")
        return password


def completed(
    settings: ReplicationSettings, folder: str, host: Callable[[], str] = socket.gethostname
) -> ReplicationSettings:
    """Check the settings of the table ``[replication]`` together; return them with a name and absolute paths.

    :param folder: the folder of the configuration file, in which relative paths of the table are resolved
    :param host: returns the name of this host, which names the server by default
    :raises Mistake: an option is missing
    """
    given = {typed(name) for name, value in attrs.asdict(settings, recurse=False).items() if value}
    if not settings.servers:
        raise Mistake('servers is missing; expected addresses such as servers = ["nats://10.0.0.1:4222"]')
    for one, other in (("user", "password-file"), ("tls-certificate", "tls-key")):
        if (one in given) != (other in given):
            raise Mistake(f"it needs both {one} and {other}, or neither", key=one if one in given else other)
    paths = within(folder, ReplicationSettings, attrs.asdict(settings, recurse=False))
    return attrs.evolve(settings, **paths | {"name": settings.name or _host_name(host())})


def _host_name(host: str) -> str:
    """Return the name of this *host*, for use as the name of this server.

    :raises Mistake: the name of the host is not a valid name of a server
    """
    host = host.split(".")[0]
    if not is_name(host):
        raise Mistake(
            f"name is missing, because the host name {host!r} cannot be used: "
            f"names have 1 to {MAX_NAME} letters, digits, - and _"
        )
    return host
