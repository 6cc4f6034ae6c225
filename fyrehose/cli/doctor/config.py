"""Find problems in a configuration, in a file or of a running server, for `fyrehose doctor`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path

import attrs
from cryptography import x509
from twisted.python import usage

from fyrehose import plugins
from fyrehose.broker.policy import PolicyFile
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cli.doctor.machine import permissions
from fyrehose.errors import ConfigError
from fyrehose.identity import Action
from fyrehose.net.connections import descriptors_for
from fyrehose.observe.listeners import encryption
from fyrehose.options import counted, exact_size, options_of, typed
from fyrehose.server.config import Config, ListenerConfig
from fyrehose.server.listeners import check_guarded
from fyrehose.server.process import RESERVED
from fyrehose.toml_files import read
from fyrehose.web.hosts import is_local

#: A certificate that expires within this time is reported.
RENEW = timedelta(days=14)
#: Options that name files that only the server may read.
_PRIVATE = ("tls_key", "tls_key_passphrase", "token_file", "server_key")
_EVERYBODY = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@attrs.frozen
class ConfigSource:
    """A configuration, and the file or the process from which it was read.

    :ivar where: a file or a process, as text for people
    :ivar file: the configuration file, if there is one
    """

    config: Config
    where: str
    file: Path | None = None


def configured(file: Path | None, data_dir: Path | None) -> ConfigSource:
    """Return the configuration of a server that would be started with these options.

    :raises ConfigError: the file cannot be used
    """
    named = (("--config", file), ("--data-dir", data_dir))
    words = [word for option, path in named if path is not None for word in (option, str(path))]
    return _parsed(words, "defaults" if file is None else str(file))


def running(pid: int) -> ConfigSource | None:
    """Return the configuration with which the process *pid* was started; None if that is unknown.

    Its files are read in their present state.

    :raises ConfigError: the files cannot be used any more
    """
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        folder = Path(f"/proc/{pid}/cwd").resolve(strict=True)
    except OSError:
        return None
    words = [word.decode(errors="surrogateescape") for word in line]
    at = next((at for at, word in enumerate(words) if at and word in ("serve", "fyrehose")), None)
    if at is None:
        return None
    with contextlib.chdir(folder):  # relative paths start in the server's directory
        return _parsed(words[at + 1 :], f"process {pid}")


def _parsed(words: Sequence[str], where: str) -> ConfigSource:
    from fyrehose.cli.serve import ServeOptions

    options = ServeOptions()
    try:
        usage.Options.parseOptions(
            options, list(words)
        )  # ServeOptions.parseOptions would end the process after an error
    except usage.UsageError as error:
        raise ConfigError(str(error)) from error
    return ConfigSource(options.resolved, where, None if options["config"] is None else Path(options["config"]))


def descriptors_wanted(config: Config) -> tuple[int, bool]:
    """Return how many file descriptors the listeners need if each has all connections that it may have.

    :return: the number, and whether an option sets a limit of connections; if not, the limits are the server's defaults
    """
    limited = [
        each.settings for each in config.listeners if "max_connections" in attrs.fields_dict(type(each.settings))
    ]
    asked = any(each.max_connections != type(each)().max_connections for each in limited)
    return sum(descriptors_for(each.max_connections) for each in limited) + RESERVED, asked


def checked(source: ConfigSource) -> Iterator[Finding]:
    """Report the findings about a configuration."""
    config = source.config
    listeners = counted(len(config.listeners), "listener")
    yield Finding(Level.OK, "configuration", f"valid, with {listeners}", source.where)
    if source.file is not None:
        yield from permissions(source.file, "configuration", private=False)
    yield from _retention(config, source.where)
    yield from _policy(config)
    for listener in config.listeners:
        yield from _listener(listener, config)
    for name, path in config.files.items():
        yield from _fixed_file(name, Path(path))


def _retention(config: Config, where: str) -> Iterator[Finding]:
    journal = config.journal
    if not journal.keep_bytes and not journal.keep_age:
        what = "nothing is ever deleted, until less than journal.min-free is free and messages are refused"
        advice = "set journal.keep-bytes (or keep-age): see `fyrehose help operating retention`"
        yield Finding(Level.WARNING, "retention", what, where, advice)
    else:
        limits = [f"keep-bytes {exact_size(journal.keep_bytes)}"] * bool(journal.keep_bytes)
        limits += [f"keep-age {journal.keep_age / 86400:g}d"] * bool(journal.keep_age)
        level, advice = Level.OK, ""
        if not journal.keep_bytes:
            level, advice = Level.NOTE, "set journal.keep-bytes, too: an age does not bound what peers send until then"
        yield Finding(level, "retention", ", ".join(limits), where, advice)
    if journal.durability.mode != "batch":
        what = f"{journal.durability}: a power cut loses messages that were acknowledged"
        yield Finding(Level.NOTE, "durability", what, where, "set journal.durability = batch if they matter")


def _policy(config: Config) -> Iterator[Finding]:
    if config.policy_file is None:
        yield Finding(Level.OK, "policy", "none: only this machine has access")
        return
    where = str(config.policy_file)
    yield Finding(Level.OK, "policy", counted(len(config.policy.rules), "rule"), where)
    yield from permissions(config.policy_file, "policy", private=False)
    for number, rule in enumerate(config.policy.rules, 1):
        proven = rule.certificates or rule.keys or rule.tokens or rule.signers
        if not proven and any(network in _EVERYBODY for network in rule.networks):
            may = [action for action in Action if rule.rights.get(action)]
            what = f"rule {number} lets every address {' and '.join(may)}"
            yield Finding(Level.WARNING, "policy", what, where, "name networks, or ask for a certificate or a token")
    for table in read("--policy", config.policy_file, PolicyFile, lambda content, _: content.allow):
        for name in table.signed:
            yield from permissions(config.policy_file.parent / name, "key of signed tokens", private=True)


def _listener(listener: ListenerConfig, config: Config) -> Iterator[Finding]:
    where = f"{listener.name}={listener.endpoint}"
    options = attrs.asdict(listener.settings, recurse=False)
    try:
        check_guarded(listener, config)
    except ConfigError as error:
        yield Finding(
            Level.ERROR, "access", str(error).partition(": ")[2], where, "see `fyrehose help operating access policy`"
        )
    if not is_local(listener.endpoint) and not encryption(listener.endpoint, listener.settings):
        if "tls_certificate" in options:
            advice = f"set {listener.name}.tls-certificate"
        elif "server_key" in options:
            advice = f"set {listener.name}.server-key (CURVE)"
        else:
            advice = "the protocol has no encryption: use a private network, or a VPN"
        what = "other machines reach it, and nothing is encrypted: messages and tokens can be read on the way"
        yield Finding(Level.WARNING, "encryption", what, where, advice)
    if extra := plugins.missing_extra(listener.plugin):
        level = Level.NOTE if extra.use or not config.explicit else Level.ERROR
        yield Finding(level, "packages", extra.missing(listener.name), where, extra.command)
    known = {field.name for field in options_of(type(listener.settings))}
    for name in known & set(_PRIVATE):
        if options[name]:
            yield from permissions(Path(options[name]), f"{listener.name}.{typed(name)}", private=True)
    if options.get("tls_certificate"):
        yield from _certificate(Path(options["tls_certificate"]), holds_key=not options.get("tls_key"), where=where)


def _fixed_file(name: str, path: Path) -> Iterator[Finding]:
    """Report about a file that a running server does not read again: see :attr:`.Config.files`."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""  # permissions() reports it
    if b"BEGIN CERTIFICATE" in data:
        yield from _certificate(path, b"PRIVATE KEY" in data, name, "restart the server")
    else:
        yield from permissions(path, name, private=b"DH PARAMETERS" not in data)


def _certificate(path: Path, holds_key: bool, where: str, then: str = "`fyrehose reload`") -> Iterator[Finding]:
    """Report when the server's certificate expires.

    :param holds_key: whether the file has the private key, too
    :param then: what makes a server use the renewed certificate
    """
    yield from permissions(path, "certificate", private=holds_key)
    try:
        ends = x509.load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc
    except OSError:
        return  # permissions() has reported it
    except ValueError as error:
        yield Finding(
            Level.ERROR,
            "certificate",
            f"no PEM certificate: {error}",
            str(path),
            "expected -----BEGIN CERTIFICATE-----; see `fyrehose help operating tls`",
        )
        return
    left = ends - datetime.now(UTC)
    day = ends.strftime("%Y-%m-%d")
    if left < timedelta():
        what = f"ended on {day}: peers refuse {where}"
        yield Finding(Level.ERROR, "certificate", what, str(path), f"renew it, then {then}")
    elif left < RENEW:
        yield Finding(Level.WARNING, "certificate", f"ends on {day}", str(path), f"renew it, then {then}")
    else:
        yield Finding(Level.OK, "certificate", f"valid until {day}", str(path))
