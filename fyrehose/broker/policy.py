"""The access policy: a file of rules that say which peers may publish, subscribe, or administer which streams.

    [[allow]]
    network = ["10.1.0.0/16", "127.0.0.1"]      # conditions: addresses ...
    certificate = "beats-*"                     # ... and a name in the TLS client certificate
    publish = ["lumberjack", "logs.*"]          # streams

    [[allow]]
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"    # the public key of a client of the event bus
    publish = "eventbus"
    subscribe = "*"

    [[allow]]
    token = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
    subscribe = "*"
    consume = "logs.*"                          # named subscriptions
    administer = "logs.*"                       # retire streams

    [[allow]]
    signed = "browsers.key"                     # the file of a key, relative to the policy
    subscribe = "logs.*"                        # the most that tokens signed with it may grant

A rule applies to a peer that meets all of its conditions; of a list, one match is enough.  Rules only allow; whatever
no rule allows is refused.  In names and streams a ``*`` matches any text.  A stream whose name begins with a dot
belongs to the server; it matches only patterns that begin with a dot, too (fyrehose/patterns.py).

    a file, an identity, an action, a stream -> allowed or not
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from ipaddress import ip_network
from math import inf
from pathlib import Path
from typing import Any

import attrs

from fyrehose.broker.signed import Grant, Rights, grant_of, read_key
from fyrehose.errors import ConfigError
from fyrehose.identity import Action, Identity, in_networks, network_of
from fyrehose.options import Network, counted
from fyrehose.patterns import Pattern, compiled
from fyrehose.toml_files import Mistake, inside, key, read, structured, texts

#: The pattern of all streams but the server's own; among keys, every key.
EVERY = "*"
#: The largest number of rules, because each is compared with each new peer, and more are probably a mistake.
MAX_RULES = 1_000

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_TOKEN = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
#: The largest number of keys of signed tokens, because each key verifies each new token.
MAX_SIGNERS = 16


@attrs.frozen(kw_only=True)
class Rule(Rights):
    """One rule: rights, and the conditions that a peer has to meet for them; an empty condition is always met.

    :ivar signers: keys; one of them must have signed the peer's token, which limits the rule to what the token grants
    :ivar grant: what the peer's token grants; None: the rule asks for no signed token, or is not applied to a peer yet
    """

    networks: tuple[Network, ...] = ()
    certificates: tuple[Pattern, ...] = attrs.field(default=(), converter=compiled)
    keys: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    signers: tuple[bytes, ...] = attrs.field(default=(), repr=False)
    grant: Grant | None = None

    def meets(self, identity: Identity, proofs: Collection[str] = ()) -> bool:
        """Return whether *identity* meets all conditions; the cheapest conditions are checked first.

        :param proofs: ``certificate``, ``key``, ``token``: conditions that count as met, because they may be met later
        """
        if self.tokens and "token" not in proofs and identity.token not in self.tokens:
            return False
        if self.signers and "token" not in proofs and identity.signed is None:
            return False
        if self.keys and "key" not in proofs and (identity.key is None or not {EVERY, identity.key} & set(self.keys)):
            return False
        certified = not self.certificates or "certificate" in proofs
        if not certified and not any(
            pattern.matches(name) for pattern in self.certificates for name in identity.certificates
        ):
            return False
        return not self.networks or in_networks(identity.host, self.networks)

    def applied(self, identity: Identity, now: float) -> Rule | None:
        """Return the rule, limited to what the token of *identity* grants; None if the rule does not apply.

        :param now: in seconds since 1970 UTC
        """
        if not self.meets(identity):
            return None
        if not self.signers:
            return self
        grant = next((each for each in self.grants(identity) if not each.flaw and now < each.expires), None)
        return None if grant is None else attrs.evolve(self, grant=grant)

    def grants(self, identity: Identity) -> list[Grant]:
        """Return the grants of the signed token of *identity*: one for each key of the rule that verifies the token."""
        token = identity.signed
        found = [grant_of(token, key) for key in self.signers] if token is not None else []
        return [grant for grant in found if grant is not None]

    def proof(self, identity: Identity) -> str | None:
        """Return the certificate, key or token of *identity* that this rule asks for; *identity* meets the rule.

        :return: None if the rule asks for no proof
        """
        if self.certificates:
            return identity.name
        if self.keys and EVERY not in self.keys:
            return identity.key
        return identity.token if self.tokens or self.signers else None

    def has(self, action: Action) -> bool:
        """Return whether the rule may allow *action* on some stream."""
        return super().has(action) and (self.grant is None or self.grant.has(action))

    def covers(self, action: Action, stream: str) -> bool:
        """Return whether the rule allows *action* on *stream*."""
        return super().covers(action, stream) and (self.grant is None or self.grant.covers(action, stream))

    def covers_every(self, action: Action) -> bool:
        """Return whether the rule allows *action* on every stream but the server's own."""
        return super().covers_every(action) and (self.grant is None or self.grant.covers_every(action))


@attrs.frozen
class Policy:
    """The rules of an access policy.

    :ivar advice: appended to the errors of refused peers

    Methods take the time at which signed tokens are judged, in seconds since 1970 UTC; without that time, no token is
    valid.
    """

    rules: tuple[Rule, ...]
    advice: str = ""

    def allows(self, identity: Identity, action: Action, stream: str, now: float = inf) -> bool:
        """Return whether *identity* may do *action* on *stream*."""
        return any(rule.covers(action, stream) for rule in self.rules_for(identity, now))

    def admits(self, identity: Identity, proofs: Collection[str]) -> bool:
        """Return whether a rule allows *identity* anything, or may do so after one of *proofs*."""
        return any(rule.meets(identity, proofs) for rule in self.rules)

    def allows_every(self, identity: Identity, action: Action, now: float = inf) -> bool:
        """Return whether one rule allows *identity* to do *action* on every stream but the server's own."""
        return any(rule.covers_every(action) for rule in self.rules_for(identity, now))

    def rules_for(self, identity: Identity, now: float = inf) -> tuple[Rule, ...]:
        """Return the rules whose conditions *identity* meets."""
        return tuple(applied for rule in self.rules if (applied := rule.applied(identity, now)) is not None)

    def flaw(self, identity: Identity, now: float) -> str:
        """Return why the signed token of *identity* is invalid; empty if it is valid, or if there is none."""
        for grant in (grant for rule in self.rules for grant in rule.grants(identity)):
            if grant.flaw or grant.expires <= now:
                return grant.flaw or f"it ended {counted(int(now - grant.expires), 'second')} ago"
        return ""


#: The policy that allows every peer everything, including the server's own streams.
OPEN = Policy((Rule(rights=dict.fromkeys(Action, (EVERY, ".*"))),))
#: The policy without a file: only clients on this machine have access, to all streams but the server's own.
LOOPBACK = Policy(
    (Rule(rights=dict.fromkeys(Action, (EVERY,)), networks=(ip_network("127.0.0.0/8"), ip_network("::1/128"))),),
    "without --policy FILE only clients on this machine have access",
)


def holder_of(identity: Identity, rules: Sequence[Rule]) -> str:
    """Return the name under which limited tables count *identity* (:mod:`fyrehose.broker.fairness`).

    The name is the network and, if a rule that applies asks for a proof, a digest of the proof.  A token or a key that
    no rule names is no proof: a peer could make up any number of them.

    :param rules: the rules that apply to *identity*
    """
    network = network_of(identity.host)
    for rule in rules:
        proof = rule.proof(identity)
        if proof:
            return f"{network} {blake2b(proof.encode(), digest_size=8).hexdigest()}"
    return network


def _each(convert: Callable[[str], Any]) -> Callable[[object], tuple[Any, ...]]:
    """Return a converter of a text or a list of texts, from one of texts."""
    return lambda value: tuple(map(convert, texts(value)))


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise Mistake(f'network is {text!r}; expected a network such as "10.0.0.0/8": {error}') from None


def _key(text: str) -> str:
    if text != EVERY and not _KEY.fullmatch(text):
        raise Mistake(f"key is {text!r}; expected the 40 characters of a public key (Z85), or *")
    return text


def _token(text: str) -> str:
    match = _TOKEN.fullmatch(text)
    if not match:  # do not quote the value, which may be the secret itself
        raise Mistake('invalid token; expected "sha256:" and the SHA-256 of the token in hexadecimal')
    return match[1].lower()


@attrs.frozen(kw_only=True)
class RuleTable:
    """One ``[[allow]]`` table of a policy: the conditions, whose names differ from those of :class:`Rule`, and rights.

    :ivar signed: files of keys
    """

    network: tuple[Network, ...] = key(_each(_network), default=())
    certificate: tuple[str, ...] = key(texts, default=())
    keys: tuple[str, ...] = key(_each(_key), default=(), name="key")
    token: tuple[str, ...] = key(_each(_token), default=())
    signed: tuple[str, ...] = key(texts, default=())
    publish: tuple[str, ...] | None = key(texts, default=None)
    subscribe: tuple[str, ...] | None = key(texts, default=None)
    consume: tuple[str, ...] | None = key(texts, default=None)
    administer: tuple[str, ...] | None = key(texts, default=None)

    def __attrs_post_init__(self) -> None:
        if not (self.network or self.certificate or self.keys or self.token or self.signed):
            raise Mistake(
                'no condition; add network = "10.0.0.0/8", certificate, key, token or signed (0.0.0.0/0 matches every '
                "address)"
            )
        if not any(self.rights.values()):
            raise Mistake('it allows nothing; add publish = "logs.*", subscribe = "*" or administer = "logs.*"')

    @property
    def rights(self) -> dict[Action, tuple[str, ...]]:
        """Return the patterns of the streams of each action that the table has."""
        found = attrs.asdict(self, recurse=False)
        return {action: found[action] for action in Action if found[action] is not None}

    def rule(self, folder: Path) -> Rule:
        """Return the rule, with the keys that verify signed tokens.

        :param folder: the folder of the policy
        :raises Mistake: a key cannot be read
        """
        signers = []
        for name in self.signed:
            try:
                signers.append(read_key(folder / name))
            except ConfigError as error:
                raise Mistake(f"signed is {name!r}: {error}", key="signed") from None
        return Rule(
            networks=self.network,
            certificates=self.certificate,
            keys=self.keys,
            tokens=self.token,
            signers=tuple(signers),
            rights=self.rights,
        )


@attrs.frozen(kw_only=True)
class PolicyFile:
    """The content of a file with a policy."""

    allow: list[RuleTable] = key(
        default=attrs.Factory(list), expected="tables named [[allow]], with two brackets", shown="[[allow]]"
    )

    def policy(self, folder: Path) -> Policy:
        """Return the policy.

        :param folder: the folder of the file, for relative paths of keys
        :raises Mistake: a rule is invalid
        """
        if not self.allow:
            raise Mistake("no [[allow]] table, so no peer would have access")
        if len(self.allow) > MAX_RULES:
            raise Mistake(f"{len(self.allow)} rules exceed the limit of {MAX_RULES}")
        found = []
        for number, table in enumerate(self.allow):
            with inside("allow", number):
                found.append(table.rule(folder))
        if len({signer for rule in found for signer in rule.signers}) > MAX_SIGNERS:
            raise Mistake(f"the rules have more than {MAX_SIGNERS} keys of signed tokens")
        return Policy(tuple(found))


def load(path: Path) -> Policy:
    """Read the policy from the TOML file at *path*.

    :raises ConfigError: the file cannot be read, or a rule is invalid
    """
    return read("--policy", path, PolicyFile, PolicyFile.policy)


def parse(content: Mapping[str, Any], folder: Path = Path()) -> Policy:
    """Return the policy of a parsed file.

    :param folder: the folder of the file, for relative paths of keys
    :raises ValueError: a rule is invalid; the message names it and says what is expected
    """
    return structured(PolicyFile, content).policy(folder)
