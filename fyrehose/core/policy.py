"""Who may do what: a file of rules, and the answer to whether this peer may publish into that stream.

    [[allow]]
    network = ["10.1.0.0/16", "127.0.0.1"]      # who: addresses ...
    certificate = "beats-*"                     # ... and the name in a client certificate, by TLS
    publish = ["lumberjack", "logs.*"]          # what: streams

    [[allow]]
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"    # the public key of a client of the event bus
    publish = "eventbus"
    subscribe = "*"

    [[allow]]
    token = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
    subscribe = "*"
    administer = "logs.*"                       # retire streams

A peer may do what any of the rules says whose conditions it meets, all of them; of a list one is enough.  Nothing is
forbidden by a rule, and what no rule allows is refused.  In names and streams a ``*`` stands for anything; for a stream
whose name begins with a dot - those are the server's own - the pattern has to begin with one, too.

    in: a file, who a peer is, what it wants      out: yes or no
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import attrs

from fyrehose.errors import ConfigError
from fyrehose.identity import Action, Identity
from fyrehose.options import Network

#: Everything but the server's own streams.
EVERY = "*"
#: A file of more rules is a mistake, and each costs a look for each new peer.
MAX_RULES = 1_000

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_TOKEN = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_WHO = ("network", "certificate", "key", "token")


@attrs.frozen(kw_only=True)
class Rule:
    """What those may do who meet every condition; an empty one is met by all."""

    networks: tuple[Network, ...] = ()
    certificates: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    administer: tuple[str, ...] = ()

    def meets(self, identity: Identity, proofs: Collection[str] = ()) -> bool:
        """Whether ``identity`` meets its conditions; those that cost the least are looked at first.

        :param proofs: ``certificate``, ``key``, ``token``: conditions that count as met, as they may be met later
        """
        if self.tokens and "token" not in proofs and identity.token not in self.tokens:
            return False
        if self.keys and "key" not in proofs and (identity.key is None or not {EVERY, identity.key} & set(self.keys)):
            return False
        certified = not self.certificates or "certificate" in proofs
        if not certified and not any(
            _pattern(pattern).fullmatch(name) for pattern in self.certificates for name in identity.certificates
        ):
            return False
        return not self.networks or near(identity.host, self.networks)

    def covers(self, action: Action, stream: str) -> bool:
        """Whether it allows ``action`` on ``stream``."""
        return covers(self.patterns(action), stream)

    def patterns(self, action: Action) -> tuple[str, ...]:
        """Return the patterns of the streams with which it allows *action*."""
        patterns: tuple[str, ...] = getattr(self, action.value)
        return patterns


@attrs.frozen
class Policy:
    """All rules.

    :ivar advice: is added to what those are told in the log who were refused
    """

    rules: tuple[Rule, ...]
    advice: str = ""

    def allows(self, identity: Identity, action: Action, stream: str) -> bool:
        """Whether ``identity`` may do ``action`` with ``stream``."""
        return any(rule.covers(action, stream) for rule in self.of(identity))

    def admits(self, identity: Identity, proofs: Collection[str]) -> bool:
        """Return whether any rule allows *identity* anything, or could once it has proved more."""
        return any(rule.meets(identity, proofs) for rule in self.rules)

    def allows_every(self, identity: Identity, action: Action) -> bool:
        """Return whether one rule allows ``identity`` to do ``action`` with every stream but the server's own."""
        return any(EVERY in rule.patterns(action) for rule in self.of(identity))

    def of(self, identity: Identity) -> tuple[Rule, ...]:
        """The rules whose conditions ``identity`` meets: all that need be asked about it."""
        return tuple(rule for rule in self.rules if rule.meets(identity))


#: Everybody may do everything with every stream, the server's own included.
OPEN = Policy((Rule(publish=(EVERY, ".*"), subscribe=(EVERY, ".*"), administer=(EVERY, ".*")),))
#: Without a file: this machine may do everything, and nobody else anything.
LOOPBACK = Policy(
    (
        Rule(
            networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")),
            publish=(EVERY,),
            subscribe=(EVERY,),
            administer=(EVERY,),
        ),
    ),
    "without --policy FILE nobody may but this machine",
)


def covers(patterns: Sequence[str], stream: str) -> bool:
    """Return whether *stream* matches one of *patterns*; if it begins with a dot, the pattern has to, too."""
    own = stream.startswith(".")
    return any((not own or pattern.startswith(".")) and _pattern(pattern).fullmatch(stream) for pattern in patterns)


def near(host: str, networks: tuple[Network, ...]) -> bool:
    """Whether the address ``host`` lies in one of ``networks``."""
    address = _address(host)
    return address is not None and any(address in network for network in networks)


@lru_cache(4096)
def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def load(path: Path) -> Policy:
    """The policy in the file at ``path``.

    :raises ConfigError: it cannot be read, or says something that is no rule
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--policy {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--policy {path} is not TOML: {error}") from error
    try:
        return parse(content)
    except ValueError as error:
        raise ConfigError(f"--policy {path}: {error}") from error


def parse(content: Mapping[str, Any]) -> Policy:
    """The policy that a file has said.

    :raises ValueError: which rule is wrong, and what would be right
    """
    rules = content.get("allow")
    if content.keys() - {"allow"}:
        raise ValueError(f"it has {min(content.keys() - {'allow'})!r}, and should have nothing but [[allow]] tables")
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        raise ValueError("it has no [[allow]] table, so nobody could do anything")
    if len(rules) > MAX_RULES:
        raise ValueError(f"it has {len(rules)} rules; {MAX_RULES} are the most")
    found = []
    for number, rule in enumerate(rules, 1):
        try:
            found.append(_rule(rule))
        except ValueError as error:
            raise ValueError(f"rule {number} {error}") from error
    return Policy(tuple(found))


def _rule(table: Mapping[str, Any]) -> Rule:
    known = {*_WHO, *(action.value for action in Action)}
    if strange := sorted(table.keys() - known):
        raise ValueError(f"has {strange[0]!r}; it may have {', '.join(_WHO)}, publish, subscribe and administer")
    said = {key: _texts(key, value) for key, value in table.items()}
    if not any(said.get(key) for key in _WHO):
        raise ValueError('says nobody who may: network = "10.0.0.0/8", certificate, key or token; 0.0.0.0/0 is anybody')
    if not any(said.get(action) for action in Action):
        raise ValueError('says nothing that they may: publish = "logs.*", subscribe = "*" or administer = "logs.*"')
    return Rule(
        networks=tuple(_network(text) for text in said.get("network", ())),
        certificates=said.get("certificate", ()),
        keys=tuple(_key(text) for text in said.get("key", ())),
        tokens=tuple(_token(text) for text in said.get("token", ())),
        publish=said.get("publish", ()),
        subscribe=said.get("subscribe", ()),
        administer=said.get("administer", ()),
    )


def _texts(key: str, value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) and each for each in values):
        raise ValueError(f"has {key} = {value!r}, and should have text, or a list of texts, none of them empty")
    return tuple(values)


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f'has network = {text!r}, and should have one such as "10.0.0.0/8": {error}') from None


def _key(text: str) -> str:
    if text != EVERY and not _KEY.fullmatch(text):
        raise ValueError(f"has key = {text!r}, and should have the 40 characters of a public key (Z85), or *")
    return text


def _token(text: str) -> str:
    match = _TOKEN.fullmatch(text)
    if not match:  # what was written there may be the secret itself
        raise ValueError('has a token that should be "sha256:" and the SHA-256 of the token, as sha256sum writes it')
    return match[1].lower()
