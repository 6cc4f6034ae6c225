"""The configuration of a server: combine the command line and a TOML file into one :class:`Config`.

    data-dir = "/var/lib/fyrehose"
    policy = "/etc/fyrehose/policy.toml"
    log-format = "json"
    log-level = "warn"

    [listen]
    figg = "tcp:8119:interface=127.0.0.1"
    "figg/office" = "tcp:8120:interface=10.0.0.1"
    backbone = ["udp:2323:interface=127.0.0.1", "udp:2324:interface=127.0.0.1"]

    [option.figg]
    max-connections = 500

    [option.journal]
    durability = "interval:100"

    [[stream]]
    name = "debug.*"
    keep-age = "1d"

    [[route]]
    listener = "lumberjack"
    stream = "logs.{fields.service}"

    [replication]
    servers = ["nats://10.0.0.1:4222", "nats://10.0.0.2:4222", "nats://10.0.0.3:4222"]
    name = "a"

The name of a listener is PROTOCOL or PROTOCOL/LABEL.  Options of PROTOCOL/LABEL override those of PROTOCOL.
Relative paths in a file are relative to its folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.endpoints import quoteStringArgument

from fyrehose import plugins
from fyrehose.broker import policy, streams
from fyrehose.broker.broker import MAX_STREAMS
from fyrehose.broker.once import KEPT
from fyrehose.broker.policy import LOOPBACK, Policy
from fyrehose.broker.quotas import STREAMS, PeerLimits
from fyrehose.broker.streams import UNLIMITED, StreamRules
from fyrehose.cluster import settings as replication
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.journal.settings import JournalSettings
from fyrehose.options import build, count, duration, option, read_toml, size, suggestion, within
from fyrehose.server.logs import FORMATS, LEVEL_NAMES
from fyrehose.subscriptions.named import MOST_NAMED

#: The keys of a configuration file besides its tables.
_TEXTS = ("data-dir", "policy", "log-format", "log-level")
_TEXTS_AND = ", ".join(_TEXTS)
_KEYS = (*_TEXTS, "listen", "option", "replication", "route", "stream")
#: The scopes of ``--option`` besides protocols.
SCOPES = ("journal", "server")

Options = dict[str, dict[str, Any]]

_LIMITS = PeerLimits()
#: A relative path in an endpoint string, in which a backslash quotes a colon.
_ENDPOINT_PATH = re.compile(
    r"(^unix:(?:address=)?|:(?:privateKey|certKey|extraCertChain|dhParameters)=)"
    r"((?!/|address=)(?:\\.|[^:\\])+)"
)


@attrs.frozen(kw_only=True)
class ServerSettings:
    """The options of the scope ``server``, which apply to all listeners together."""

    max_streams: int = option(100_000, count, "maximum number of streams on the server", least=1, most=MAX_STREAMS)
    streams_per_address: int = option(
        0,
        count,
        f"number of streams that one address, or one identity, may create until a restart: {_LIMITS.burst}, or half "
        f"of them, at once, then {_LIMITS.rate:g}, or a 200th, each second; 0: {STREAMS}, or half of "
        "max-streams if that is less",
    )
    subscriptions_per_address: int = option(
        _LIMITS.subscriptions, count, "maximum number of simultaneous subscriptions of one address", least=1
    )
    named_subscriptions: int = option(
        1_000, count, "maximum number of named subscriptions; one address may create half of them", most=MOST_NAMED
    )
    keys_kept: float = option(
        KEPT,
        duration,
        "shortest time for which the key of a publish is kept; in a full table the address with the most loses its "
        "oldest earlier",
        least=int(KEPT),
    )
    retire_idle: float = option(0.0, duration, "retire a stream after it has been empty for this long; 0: never")
    memory: int = option(
        512 << 20, size, "memory for received data that is not durable yet, of all connections", least=1 << 20
    )
    drain: float | None = option(
        None,
        duration,
        "after SIGTERM, /ready is 503 and everything is served for this long; default: 10s under systemd and in "
        "Kubernetes, else 0s",
    )

    @property
    def memory_per_connection(self) -> int:
        """Return how much memory one connection may use before the server stops reading from it: 8 MiB by default."""
        return self.memory // 64

    @property
    def peer_limits(self) -> PeerLimits:
        """Return the limits of the streams and subscriptions that one peer may create."""
        return PeerLimits(
            streams=self.streams_per_address,
            burst=max(_LIMITS.burst, self.streams_per_address // 2),
            rate=max(_LIMITS.rate, self.streams_per_address / 200),
            subscriptions=self.subscriptions_per_address,
        )


@attrs.frozen(kw_only=True)
class ListenerConfig:
    """The configuration of one listener: its protocol plugin, endpoint and settings."""

    name: str  #: PROTOCOL or PROTOCOL/LABEL
    plugin: IProtocolPlugin
    endpoint: str
    settings: Any


@attrs.frozen(kw_only=True)
class Config:
    """The checked configuration of a server."""

    data_dir: Path
    listeners: tuple[ListenerConfig, ...]
    #: Whether --listen or [listen] is used; if not, every protocol listens on its default endpoint.
    explicit: bool
    server: ServerSettings
    journal: JournalSettings
    policy: Policy = LOOPBACK
    #: The file with the access policy, which is read again on reload.
    policy_file: Path | None = None
    log_format: str = "text"
    log_level: str = "info"
    #: The limits of streams, by patterns of their names.
    streams: StreamRules = UNLIMITED
    #: the options of a cluster; None: the server is in no cluster
    replication: ReplicationSettings | None = None


@attrs.frozen(kw_only=True)
class FromFile:
    """The content of a configuration file, in which every part is optional."""

    data_dir: str | None = None
    policy: str | None = None
    log_format: str | None = None
    log_level: str | None = None
    listen: list[tuple[str, str]] = attrs.field(factory=list)
    options: Options = attrs.field(factory=dict)
    streams: StreamRules = UNLIMITED
    replication: ReplicationSettings | None = None


def parse_listen(text: str) -> tuple[str, str]:
    """Split ``PROTOCOL=ENDPOINT``.

    :return: the protocol (with its label) and the endpoint
    :raises ConfigError: *text* has another form
    """
    name, equals, endpoint = text.partition("=")
    if not (name and equals and endpoint):
        raise ConfigError(f"invalid --listen {text!r}: expected PROTOCOL=ENDPOINT, for example figg=tcp:8119")
    return name, endpoint


def parse_option(text: str) -> tuple[str, str, str]:
    """Split ``PROTOCOL.NAME=VALUE``.

    :return: the scope, the name with underscores, and the value
    :raises ConfigError: *text* has another form
    """
    left, equals, value = text.partition("=")
    scope, dot, name = left.rpartition(".")
    if not (scope and dot and name and equals):
        raise ConfigError(
            f"invalid --option {text!r}: expected PROTOCOL.NAME=VALUE, for example figg.max-connections=500"
        )
    return scope, name.replace("-", "_"), value


def read_file(path: Path) -> FromFile:
    """Read the configuration file at *path*; relative paths in it are relative to its folder.

    :raises ConfigError: the file cannot be read, or is invalid
    """
    content = read_toml("--config", path)
    unknown = sorted(content.keys() - set(_KEYS))
    if unknown:
        raise ConfigError(
            f"invalid --config {path}: unknown key {unknown[0]!r}; expected {_TEXTS_AND}, [listen], [option.PROTOCOL], "
            f"[replication], [[stream]] or [[route]]{suggestion(unknown[0], _KEYS)}"
        )
    texts, listen, options = (
        [content.get(name) for name in _TEXTS],
        content.get("listen", {}),
        content.get("option", {}),
    )
    for name, text in zip(_TEXTS, texts, strict=True):
        if not isinstance(text, str | None):
            raise ConfigError(f"invalid --config {path}: {name} must be text in quotes")
    if not isinstance(listen, dict):
        raise ConfigError(f"invalid --config {path}: [listen] must be a table of PROTOCOL = ENDPOINT")
    if not isinstance(options, dict) or not all(isinstance(table, dict) for table in options.values()):
        raise ConfigError(f"invalid --config {path}: options must be in tables named [option.PROTOCOL]")
    folder = path.absolute().parent
    try:
        rules = streams.parse(content.get("stream", []))
        routed = _routes(content.get("route", []), options)
        table = content.get("replication")
        cluster = None if table is None else replication.parse(table, str(folder))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"invalid --config {path}: {error}") from error
    return FromFile(
        data_dir=None if texts[0] is None else str(folder / texts[0]),
        policy=None if texts[1] is None else str(folder / texts[1]),
        log_format=texts[2],
        log_level=texts[3],
        listen=[(name, _endpoint_within(folder, endpoint)) for name, endpoint in _endpoints(path, listen)],
        options={
            scope: _options_within(folder, scope, _plain(table)) for scope, table in merged(options, routed).items()
        },
        streams=rules,
        replication=cluster,
    )


def _routes(tables: object, options: Options) -> Options:
    """Return the ``[[route]]`` tables of a file as the option ``routes`` of their listeners.

    :raises ValueError: a table is invalid; the message names it and says what is expected
    """
    expected = 'listener = "lumberjack" and stream = "logs.{fields.service}"'
    if not isinstance(tables, list):
        raise ValueError("expected routes in tables named [[route]], with two brackets")
    found: dict[str, dict[str, Any]] = {}
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict) or set(table) != {"listener", "stream"}:
            raise ValueError(f"[[route]] table {number} has other keys than expected, which are {expected}")
        listener, stream = table["listener"], table["stream"]
        if not isinstance(listener, str) or not isinstance(stream, str) or "," in stream:
            raise ValueError(f"[[route]] table {number} has other values than texts without commas, such as {expected}")
        protocol = listener.partition("/")[0]
        if protocol not in plugins.names() or "routes" not in attrs.fields_dict(plugins.load(protocol).settings):
            raise ValueError(f"[[route]] table {number} is for {listener!r}, which has no routes; expected {expected}")
        if "routes" in options.get(listener, {}):
            raise ValueError(f"[[route]] table {number} is for {listener}, whose option routes is set, too; use one")
        found.setdefault(listener, {"routes": []})["routes"].append(stream)
    return found


def merged(under: Options, over: Options) -> Options:
    """Return the options of *under* and *over* together; if both have an option, the value of *over* counts."""
    return {scope: {**under.get(scope, {}), **over.get(scope, {})} for scope in [*under, *(over.keys() - under)]}


def resolve(
    data_dir: str,
    listen: Iterable[tuple[str, str]],
    options: Options,
    policy_file: str | None = None,
    log_format: str = "text",
    rules: StreamRules = UNLIMITED,
    cluster: ReplicationSettings | None = None,
    log_level: str = "info",
) -> Config:
    """Check the configuration, and build the settings of every listener.

    :param listen: pairs of a listener's name and its endpoint; empty: every protocol on its default endpoint
    :param rules: limits of streams by their names
    :param cluster: the options of replication; None: the server is in no cluster
    :raises ConfigError: a part of the configuration is invalid
    """
    wanted = list(listen)
    names = {name for name, _ in wanted}
    for scope in options:
        if scope not in SCOPES:
            _check_scope(scope)
            _settings(scope, options)
        if "/" in scope and scope not in names:  # without this error, the options would have no effect
            raise ConfigError(f"options of {scope!r} without a listener; add --listen {scope}=ENDPOINT")
    duplicate = next((pair for pair, times in Counter(wanted).items() if times > 1), None)
    if duplicate is not None:
        raise ConfigError(
            f"duplicate --listen {'='.join(duplicate)}; use another endpoint, or name listeners PROTOCOL/LABEL"
        )
    listeners = [_listener(name, endpoint, options) for name, endpoint in wanted]
    for option_name, value, known in (("log-format", log_format, FORMATS), ("log-level", log_level, LEVEL_NAMES)):
        if value not in known:
            expected = f"expected {' or '.join(known)}{suggestion(value, known)}"
            raise ConfigError(f"invalid --{option_name} {value!r}: {expected}")
    if not wanted:
        listeners = [_listener(name, plugins.load(name).default_endpoint, options) for name in plugins.names()]
    return Config(
        data_dir=Path(data_dir).absolute(),
        listeners=tuple(listeners),
        explicit=bool(wanted),
        server=build(ServerSettings, "server", options.get("server", {})),
        journal=build(JournalSettings, "journal", options.get("journal", {})),
        policy=LOOPBACK if policy_file is None else policy.load(Path(policy_file)),
        policy_file=None if policy_file is None else Path(policy_file).absolute(),
        log_format=log_format,
        log_level=log_level,
        streams=rules,
        replication=cluster,
    )


def _listener(name: str, endpoint: str, options: Options) -> ListenerConfig:
    plugin, settings = _settings(name, options)
    return ListenerConfig(name=name, plugin=plugin, endpoint=endpoint, settings=settings)


def _check_scope(scope: str) -> None:
    known = [*SCOPES, *plugins.names()]
    base = scope.partition("/")[0]
    if base not in known:
        raise ConfigError(
            f"unknown scope {base!r} of options; expected one of {', '.join(known)}{suggestion(base, known)}"
        )


def _settings(name: str, options: Options) -> tuple[IProtocolPlugin, Any]:
    """Return the protocol plugin of the listener *name*, and the settings of the listener."""
    base = name.partition("/")[0]
    plugin = plugins.load(base)
    values = {**options.get(base, {}), **options.get(name, {})}
    return plugin, build(plugin.settings, name, values)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in table.items()}


def _options_within(folder: Path, scope: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return *table*, the options of *scope*, with relative paths made absolute: they are relative to *folder*."""
    protocol = scope.partition("/")[0]
    if protocol not in (*SCOPES, *plugins.names()):
        return table  # resolve() refuses the unknown scope
    settings = {"journal": JournalSettings, "server": ServerSettings}.get(scope) or plugins.load(protocol).settings
    return within(str(folder), settings, table)


def _endpoint_within(folder: Path, endpoint: str) -> str:
    """Return *endpoint* with absolute paths of sockets, keys and certificates; relative ones begin in *folder*."""
    start = quoteStringArgument(str(folder))
    return _ENDPOINT_PATH.sub(lambda found: f"{found[1]}{start}/{found[2]}", endpoint)


def _endpoints(path: Path, listen: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, endpoints in listen.items():
        for endpoint in endpoints if isinstance(endpoints, list) else [endpoints]:
            if not isinstance(endpoint, str):
                raise ConfigError(f"invalid --config {path}: {name} in [listen] must be an endpoint or a list of them")
            yield name, endpoint
