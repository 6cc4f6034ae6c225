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
from fyrehose.broker.streams import UNLIMITED, StreamRule, StreamRules
from fyrehose.cluster import settings as replication
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import ConfigError
from fyrehose.file_content import FileContent
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.journal.settings import JournalSettings
from fyrehose.net.endpoints import flaw_of
from fyrehose.options import (
    build,
    count,
    duration,
    files_of,
    one_of,
    option,
    size,
    suggestion,
    typed,
    within,
)
from fyrehose.server.logs import FORMATS, LEVEL_NAMES
from fyrehose.subscriptions.table import MOST_NAMED
from fyrehose.toml_files import Mistake, are_tables, inside, key, read, scalar, shown, structured, text, texts

#: The scopes of ``--option`` besides protocols.
SCOPES = ("journal", "server")

Options = dict[str, dict[str, Any]]

_LIMITS = PeerLimits()
#: The parts of an ``ssl:`` endpoint that name files.
_FILES = "privateKey|certKey|extraCertChain|dhParameters"
#: A relative path in an endpoint string, in which a backslash quotes a colon.
_ENDPOINT_PATH = re.compile(
    rf"(^unix:(?:address=)?|:(?:{_FILES})=)"
    r"((?!/|address=)(?:\\.|[^:\\])+)"
)
#: The path of a key or a certificate in an endpoint string.
_ENDPOINT_FILE = re.compile(rf":({_FILES})=((?:\\.|[^:\\])+)")


@attrs.frozen(kw_only=True)
class ServerSettings:
    """The options of the scope ``server``, which apply to all listeners together."""

    max_streams: int = option(100_000, count, "maximum number of streams on the server", least=1, most=MAX_STREAMS)
    streams_per_address: int = option(
        0,
        count,
        f"number of streams that one address, or one identity, may create until a restart; 0: {STREAMS}, or half of "
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
        return PeerLimits(streams=self.streams_per_address, subscriptions=self.subscriptions_per_address)


@attrs.frozen(kw_only=True)
class ListenerConfig:
    """The configuration of one listener: its protocol plugin, endpoint and settings."""

    name: str  #: PROTOCOL or PROTOCOL/LABEL
    plugin: IProtocolPlugin
    endpoint: str
    settings: Any
    #: the configuration file that has the endpoint or options; empty: only the command line has
    file: str = ""


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
    #: What :attr:`files` had when the configuration was read.
    contents: Mapping[str, FileContent] = attrs.Factory(
        lambda self: {name: FileContent.at(path) for name, path in self.files.items()}, takes_self=True
    )

    @property
    def files(self) -> dict[str, str]:
        """Return the paths of the files that no listener reads again, which ``[replication]`` and endpoints name.

        :return: by the option, such as ``replication.tls-key``, or by the endpoint's part, ``figg.certKey=PATH``
        """
        named = {} if self.replication is None else files_of(self.replication)
        found = {f"replication.{typed(name)}": path for name, path in named.items()}
        for listener in self.listeners:
            for part in _ENDPOINT_FILE.finditer(listener.endpoint):
                path = re.sub(r"\\(.)", r"\1", part[2])
                found[f"{listener.name}.{part[1]}={path}"] = path
        return found


def parse_listen(text: str) -> tuple[str, str]:
    """Split ``PROTOCOL=ENDPOINT``.

    :return: the protocol (with its label) and the endpoint
    :raises ConfigError: *text* has another form
    """
    name, _, endpoint = text.partition("=")
    if not (name and endpoint):
        raise ConfigError(f"invalid --listen {text!r}: expected PROTOCOL=ENDPOINT, for example figg=tcp:8119")
    return name, endpoint


def parse_option(text: str) -> tuple[str, str, str]:
    """Split ``PROTOCOL.NAME=VALUE``.

    :return: the scope, the name with underscores, and the value
    :raises ConfigError: *text* has another form
    """
    left, equals, value = text.partition("=")
    scope, _, name = left.rpartition(".")
    if not (scope and name and equals):
        raise ConfigError(
            f"invalid --option {text!r}: expected PROTOCOL.NAME=VALUE, for example figg.max-connections=500"
        )
    return scope, name.replace("-", "_"), value


@attrs.frozen(kw_only=True)
class RouteTable:
    """A ``[[route]]`` table: a stream that a listener chooses for each event by the names of its fields."""

    listener: str = key(text, expected='the name of a listener, such as "lumberjack"')
    stream: str = key(text, expected='a name such as "logs.{fields.service}"')

    def __attrs_post_init__(self) -> None:
        protocol = self.listener.partition("/")[0]
        if protocol not in plugins.names() or "routes" not in attrs.fields_dict(plugins.load(protocol).settings):
            raise Mistake(
                f"listener is {self.listener!r}, which has no routes; expected lumberjack or syslog", key="listener"
            )
        if "," in self.stream:
            raise Mistake(f"stream is {self.stream!r}; expected a name without commas", key="stream")


def _endpoints(table: object) -> list[tuple[str, str]]:
    """Return pairs of a listener and its endpoint, from the table ``[listen]``."""
    if not isinstance(table, dict):
        raise ValueError("a table of PROTOCOL = ENDPOINT")
    found = []
    for name, value in table.items():
        _known_protocol(name)
        try:
            found += [(name, endpoint) for endpoint in texts(value)]
        except ValueError:
            raise Mistake(f"{name} is {shown(value)}; expected an endpoint or a list of them", key=name) from None
    return found


def _path(value: object) -> str:
    if not text(value):
        raise ValueError("a path")
    return text(value)


def _known_protocol(name: str) -> None:
    """Check that there is a plugin for the listener *name*, and that it can be imported."""
    try:
        plugins.load(name.partition("/")[0])
    except ConfigError as error:
        raise Mistake(str(error), key=name) from error


def _options(tables: object) -> Options:
    """Return the checked tables ``[option.SCOPE]``, as the file has them: options on the command line may replace some.

    The tables of listeners with a label come last, because their protocol's options apply to them, too.
    """
    if not isinstance(tables, dict):
        raise ValueError("tables named [option.PROTOCOL]")
    found: Options = {}
    for scope in sorted(tables, key=lambda scope: "/" in scope):
        if not isinstance(tables[scope], dict):
            raise Mistake(f"{scope} is {shown(tables[scope])}; expected a table", key=scope)
        with inside(scope):
            try:
                settings = _settings_class(scope)
            except ConfigError as error:
                raise Mistake(str(error)) from error
            structured(settings, found.get(scope.partition("/")[0], {}) | _plain(tables[scope]))
        found[scope] = _plain(tables[scope])
    return {scope: found[scope] for scope in tables}


def _limits(tables: object) -> StreamRules:
    if not are_tables(tables, list[StreamRule]):
        raise ValueError("tables named [[stream]], with two brackets")
    return streams.limits(structured(list[StreamRule], tables))


@attrs.frozen(kw_only=True)
class FromFile:
    """The content of a configuration file, in which every part is optional."""

    data_dir: str | None = key(_path, default=None)
    policy: str | None = key(_path, default=None)
    log_format: str | None = key(scalar(one_of(*FORMATS)), default=None)
    log_level: str | None = key(scalar(one_of(*LEVEL_NAMES)), default=None)
    listen: list[tuple[str, str]] = key(_endpoints, default=attrs.Factory(list), shown="[listen]")
    options: Options = key(_options, default=attrs.Factory(dict), name="option", shown="[option.PROTOCOL]")
    replication: ReplicationSettings | None = key(
        default=None, expected="a table: [replication]", shown="[replication]"
    )
    streams: StreamRules = key(_limits, default=UNLIMITED, name="stream", shown="[[stream]]")
    routes: list[RouteTable] = key(
        default=attrs.Factory(list),
        name="route",
        expected="tables named [[route]], with two brackets",
        shown="[[route]]",
    )

    def resolved(self, folder: Path) -> FromFile:
        """Return the content with relative paths resolved in *folder*, and with the routes among the options.

        :raises Mistake: tables contradict each other
        """
        self._check_listeners()
        with inside("replication"):
            cluster = None if self.replication is None else replication.completed(self.replication, str(folder))
        listen = [(name, _endpoint_within(folder, endpoint)) for name, endpoint in self.listen]
        for name, endpoint in listen:
            if flaw := flaw_of(endpoint):
                raise Mistake(f"{name} is {endpoint!r}: {flaw}", "listen", key=name)
        options = merged(self.options, self._routes())
        return attrs.evolve(
            self,
            data_dir=None if self.data_dir is None else str(folder / self.data_dir),
            policy=None if self.policy is None else str(folder / self.policy),
            listen=listen,
            options={scope: within(str(folder), _settings_class(scope), table) for scope, table in options.items()},
            replication=cluster,
            routes=[],
        )

    def _check_listeners(self) -> None:
        """Check that the options and routes are of listeners in this file, if it has listeners."""
        scopes = [(scope, ("option", scope)) for scope in self.options]
        for scope, table in scopes + [(route.listener, ("route", n)) for n, route in enumerate(self.routes)]:
            if self.listen and not applies(scope, self.listen):
                advice = f'add {scope} = "ENDPOINT" to [listen], or remove this table'
                raise Mistake(f"it has no effect, because {scope} does not listen; {advice}", *table)

    def _routes(self) -> Options:
        """Return the ``[[route]]`` tables as the option ``routes`` of their listeners."""
        found: Options = {}
        for number, route in enumerate(self.routes):
            if "routes" in self.options.get(route.listener, {}):
                raise Mistake(f"the option routes of {route.listener} is set, too; use one of them", "route", number)
            found.setdefault(route.listener, {"routes": []})["routes"].append(route.stream)
        return found


def read_file(path: Path) -> FromFile:
    """Read the configuration file at *path*; relative paths in it are relative to its folder.

    :raises ConfigError: the file cannot be read, or is invalid
    """
    return read("--config", path, FromFile, FromFile.resolved)


def applies(scope: str, listen: Iterable[tuple[str, str]]) -> bool:
    """Return whether options of *scope* have an effect on the listeners *listen*, or on the server."""
    return scope in SCOPES or any(scope in (name, name.partition("/")[0]) for name, _ in listen)


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
    for name, endpoint in wanted:
        if flaw := flaw_of(endpoint):
            raise ConfigError(f"invalid --listen {name}={endpoint}: {flaw}")
    listeners = [_listener(name, endpoint, options) for name, endpoint in wanted]
    for option_name, value, known in (("log-format", log_format, FORMATS), ("log-level", log_level, LEVEL_NAMES)):
        try:
            one_of(*known)(value)
        except ValueError as expected:
            raise ConfigError(f"invalid --{option_name} {value!r}: expected {expected}") from None
    if not data_dir:
        raise ConfigError("invalid --data-dir '': expected a directory")
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


def _settings_class(scope: str) -> type[Any]:
    """Return the class of the options of *scope*.

    :raises ConfigError: there is no such scope, or the plugin of the protocol cannot be loaded
    """
    _check_scope(scope)
    found = {"journal": JournalSettings, "server": ServerSettings}.get(scope)
    return found or plugins.load(scope.partition("/")[0]).settings


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in table.items()}


def _endpoint_within(folder: Path, endpoint: str) -> str:
    """Return *endpoint* with absolute paths of sockets, keys and certificates; relative ones begin in *folder*."""
    start = quoteStringArgument(str(folder))
    return _ENDPOINT_PATH.sub(lambda found: f"{found[1]}{start}/{found[2]}", endpoint)
