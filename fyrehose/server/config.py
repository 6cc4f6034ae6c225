"""What a server is told to do: the command line and a TOML file come to one :class:`Config`.

    data-dir = "/var/lib/fyrehose"
    policy = "/etc/fyrehose/policy.toml"
    log-format = "json"

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

The name of a listener is PROTOCOL or PROTOCOL/LABEL.  Options of PROTOCOL/LABEL override those of PROTOCOL.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from fyrehose import plugins
from fyrehose.core import policy, streams
from fyrehose.core.broker import MAX_STREAMS
from fyrehose.core.policy import LOOPBACK, Policy
from fyrehose.core.quotas import STREAMS, PeerLimits
from fyrehose.core.streams import UNLIMITED, StreamRules
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.journal.settings import JournalSettings
from fyrehose.options import build, count, duration, option, size
from fyrehose.server.logs import FORMATS

#: What a file has besides tables.
_TEXTS = ("data-dir", "policy", "log-format")
_TEXTS_AND = ", ".join(_TEXTS)
#: What ``--option`` takes besides plugins.
SCOPES = ("journal", "server")

Options = dict[str, dict[str, Any]]

_LIMITS = PeerLimits()


def _streams(text: str) -> int:
    number = count(text)
    if not 1 <= number <= MAX_STREAMS:
        raise ValueError(f"a number from 1 to {MAX_STREAMS}")
    return number


@attrs.frozen(kw_only=True)
class ServerSettings:
    """What concerns all listeners together."""

    max_streams: int = option(100_000, _streams, "streams that the server may hold")
    streams_per_address: int = option(
        0,
        count,
        f"streams that one address, and one identity, may make until the server is restarted; 0: {STREAMS}, or half of "
        "max-streams if that is less",
    )
    new_streams_burst: int = option(
        _LIMITS.burst, count, "streams that one address, and one identity, may make at once", least=1
    )
    new_streams_rate: int = option(int(_LIMITS.rate), count, "and each second after that", least=1)
    subscriptions_per_address: int = option(
        _LIMITS.subscriptions, count, "subscriptions that one address may have at a time", least=1
    )
    retire_idle: float = option(
        0.0, duration, "retire a stream that has had no record that is kept for this long; 0: never"
    )
    memory: int = option(
        512 << 20, size, "what all connections may have sent in that is not durable yet", least=1 << 20
    )
    memory_per_connection: int = option(
        8 << 20, size, "the same for one connection, before it is read no further", least=1 << 10
    )

    @property
    def peer_limits(self) -> PeerLimits:
        """Return the limits that hold for each peer."""
        return PeerLimits(
            streams=self.streams_per_address,
            burst=self.new_streams_burst,
            rate=self.new_streams_rate,
            subscriptions=self.subscriptions_per_address,
        )


@attrs.frozen(kw_only=True)
class ListenerConfig:
    """One listener: a plugin, where it listens, and with which settings."""

    name: str  #: PROTOCOL or PROTOCOL/LABEL
    plugin: IProtocolPlugin
    endpoint: str
    settings: Any


@attrs.frozen(kw_only=True)
class Config:
    """Everything that a server has to know, checked."""

    data_dir: Path
    listeners: tuple[ListenerConfig, ...]
    #: whether anybody said where to listen; else every plugin listens at its default endpoint
    chosen: bool
    server: ServerSettings
    journal: JournalSettings
    policy: Policy = LOOPBACK
    #: where the policy was read from, and is read again
    policy_file: Path | None = None
    log_format: str = "text"
    #: limits of streams by their names
    streams: StreamRules = UNLIMITED


@attrs.frozen(kw_only=True)
class FromFile:
    """What a file of settings says: nothing of it has to be there."""

    data_dir: str | None = None
    policy: str | None = None
    log_format: str | None = None
    listen: list[tuple[str, str]] = attrs.field(factory=list)
    options: Options = attrs.field(factory=dict)
    streams: StreamRules = UNLIMITED


def parse_listen(text: str) -> tuple[str, str]:
    """``PROTOCOL=ENDPOINT`` in two.

    :raises ConfigError: it is something else
    """
    name, equals, endpoint = text.partition("=")
    if not (name and equals and endpoint):
        raise ConfigError(f"--listen is {text!r}, and should be PROTOCOL=ENDPOINT, such as figg=tcp:8119")
    return name, endpoint


def parse_option(text: str) -> tuple[str, str, str]:
    """``PROTOCOL.NAME=VALUE`` in three.

    :raises ConfigError: it is something else
    """
    left, equals, value = text.partition("=")
    scope, dot, name = left.rpartition(".")
    if not (scope and dot and name and equals):
        raise ConfigError(f"--option is {text!r}, and should be PROTOCOL.NAME=VALUE, such as figg.max-connections=500")
    return scope, name.replace("-", "_"), value


def read_file(path: Path) -> FromFile:
    """What the file at ``path`` says.

    :raises ConfigError: it cannot be read, or has something else in it
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from error
    strange = sorted(content.keys() - {*_TEXTS, "listen", "option", "stream"})
    if strange:
        raise ConfigError(
            f"--config {path} has {strange[0]!r}; it may have {_TEXTS_AND}, [listen], [option.PROTOCOL] and [[stream]]"
        )
    texts, listen, options = (
        [content.get(name) for name in _TEXTS],
        content.get("listen", {}),
        content.get("option", {}),
    )
    for name, text in zip(_TEXTS, texts, strict=True):
        if not isinstance(text, str | None):
            raise ConfigError(f"--config {path}: {name} should be text in quotes")
    if not isinstance(listen, dict):
        raise ConfigError(f"--config {path}: [listen] should be a table of PROTOCOL = ENDPOINT")
    if not isinstance(options, dict) or not all(isinstance(table, dict) for table in options.values()):
        raise ConfigError(f"--config {path}: options belong into tables called [option.PROTOCOL]")
    try:
        rules = streams.parse(content.get("stream", []))
    except ValueError as error:
        raise ConfigError(f"--config {path}: {error}") from error
    return FromFile(
        data_dir=texts[0],
        policy=texts[1],
        log_format=texts[2],
        listen=list(_endpoints(path, listen)),
        options={scope: _plain(table) for scope, table in options.items()},
        streams=rules,
    )


def merged(under: Options, over: Options) -> Options:
    """The options of both; ``over`` wins where they differ."""
    return {scope: {**under.get(scope, {}), **over.get(scope, {})} for scope in [*under, *(over.keys() - under)]}


def resolve(
    data_dir: str,
    listen: Iterable[tuple[str, str]],
    options: Options,
    policy_file: str | None = None,
    log_format: str = "text",
    rules: StreamRules = UNLIMITED,
) -> Config:
    """What was said, checked and made into settings.

    :raises ConfigError: says what is wrong, and what would be right
    """
    wanted = list(listen)
    names = {name for name, _ in wanted}
    for scope in options:
        if scope not in SCOPES:
            _settings(scope, options)
        if "/" in scope and scope not in names:  # it would be left out in silence
            raise ConfigError(
                f"options are given for {scope}, and no --listen {scope}=ENDPOINT says where that listens"
            )
    twice = next((which for which, times in Counter(wanted).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(
            f"--listen {'='.join(twice)} is said twice; a listener of its own has a name of its own, PROTOCOL/LABEL"
        )
    listeners = [_listener(name, endpoint, options) for name, endpoint in wanted]
    if log_format not in FORMATS:
        raise ConfigError(f"--log-format is {log_format!r}, and should be {' or '.join(FORMATS)}")
    if not wanted:
        listeners = [_listener(name, plugins.load(name).default_endpoint, options) for name in plugins.names()]
    return Config(
        data_dir=Path(data_dir).absolute(),
        listeners=tuple(listeners),
        chosen=bool(wanted),
        server=build(ServerSettings, "server", options.get("server", {})),
        journal=build(JournalSettings, "journal", options.get("journal", {})),
        policy=LOOPBACK if policy_file is None else policy.load(Path(policy_file)),
        policy_file=None if policy_file is None else Path(policy_file).absolute(),
        log_format=log_format,
        streams=rules,
    )


def _listener(name: str, endpoint: str, options: Options) -> ListenerConfig:
    plugin, settings = _settings(name, options)
    return ListenerConfig(name=name, plugin=plugin, endpoint=endpoint, settings=settings)


def _settings(name: str, options: Options) -> tuple[IProtocolPlugin, Any]:
    """The plugin of the listener ``name``, and the listener's settings."""
    base = name.partition("/")[0]
    plugin = plugins.load(base)
    values = {**options.get(base, {}), **options.get(name, {})}
    return plugin, build(plugin.settings, name, values)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in table.items()}


def _endpoints(path: Path, listen: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, endpoints in listen.items():
        for endpoint in endpoints if isinstance(endpoints, list) else [endpoints]:
            if not isinstance(endpoint, str):
                raise ConfigError(f"--config {path}: {name} in [listen] should be an endpoint, or a list of them")
            yield name, endpoint
