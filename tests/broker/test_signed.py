"""Signed tokens: what they grant, within the rule of the policy that names their key, and until when."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from fyrehose.broker.policy import MAX_SIGNERS, Policy, holder_of, load, parse
from fyrehose.broker.signed import MAX_PATTERNS, MAX_TOKEN, SHORTEST_KEY, grant_of, is_signed, sign
from fyrehose.errors import ConfigError
from fyrehose.identity import Action, Identity
from fyrehose.web.shell import with_token

KEY, OTHER = b"k" * SHORTEST_KEY, b"o" * SHORTEST_KEY
START = 1_000_000


def made(claims: Any, key: bytes = KEY, header: Any = None) -> str:
    """Return a token as another program would sign it."""
    parts = [json.dumps(part).encode() for part in (header or {"typ": "JWT", "alg": "HS256"}, claims)]
    signed = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = urlsafe_b64encode(hmac.digest(key, signed, "sha256")).rstrip(b"=")
    return (signed + b"." + signature).decode()


def holder(token: str) -> Identity:
    return with_token(Identity(host="10.0.0.1"), token)


def policy(folder: Path, *rules: dict[str, Any]) -> Policy:
    for name, key in (("k", KEY), ("o", OTHER)):
        (folder / name).write_bytes(key)
    return parse({"allow": list(rules)}, folder)


def test_a_token_grants_its_rights_within_those_of_the_rule(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "logs.*", "publish": "in"})
    token = sign({Action.SUBSCRIBE: ["logs.web", "secret"]}, START + 60, KEY)
    assert found.allows(holder(token), Action.SUBSCRIBE, "logs.web", START)
    assert not found.allows(holder(token), Action.SUBSCRIBE, "logs.db", START), "the token does not grant it"
    assert not found.allows(holder(token), Action.SUBSCRIBE, "secret", START), "the rule does not allow it"
    assert not found.allows(holder(token), Action.PUBLISH, "in", START), "the token does not grant it"
    assert not found.allows(Identity(host="10.0.0.1"), Action.SUBSCRIBE, "logs.web", START)


def test_the_right_to_all_streams_needs_a_star_in_the_rule_and_in_the_token(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    every, some = (sign({Action.SUBSCRIBE: [pattern]}, START + 60, KEY) for pattern in ("*", "a*"))
    assert found.allows_every(holder(every), Action.SUBSCRIBE, START)
    assert not found.allows_every(holder(some), Action.SUBSCRIBE, START)
    assert not found.allows(holder(every), Action.SUBSCRIBE, ".published", START)


def test_a_token_of_another_key_or_with_other_claims_grants_nothing(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    good = sign({Action.SUBSCRIBE: ["a"]}, START + 60, KEY)
    header, claims, signature = good.split(".")
    altered = urlsafe_b64encode(urlsafe_b64decode(claims + "==").replace(b'"a"', b'"b"')).decode().rstrip("=")
    for token, stream in (
        (sign({Action.SUBSCRIBE: ["a"]}, START + 60, OTHER), "a"),
        (f"{header}.{altered}.{signature}", "b"),
        (made({"exp": START + 60, "subscribe": "a"}, header={"alg": "none"}), "a"),
    ):
        assert not found.allows(holder(token), Action.SUBSCRIBE, stream, START)
    assert found.allows(holder(good), Action.SUBSCRIBE, "a", START)


def test_a_rule_with_two_keys_accepts_tokens_of_both(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": ["k", "o"], "subscribe": "*"})
    for key in (KEY, OTHER):
        assert found.allows(holder(sign({Action.SUBSCRIBE: ["a"]}, START + 60, key)), Action.SUBSCRIBE, "a", START)


def test_a_token_with_as_many_patterns_as_can_be_signed_is_accepted(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    token = sign({Action.SUBSCRIBE: ["a"] * (MAX_PATTERNS - 1), Action.PUBLISH: ["b"]}, START + 60, KEY)
    assert found.allows(holder(token), Action.SUBSCRIBE, "a", START), found.flaw(holder(token), START)
    with pytest.raises(ValueError, match=f"and {MAX_PATTERNS} patterns"):
        sign({Action.SUBSCRIBE: ["a"] * MAX_PATTERNS, Action.PUBLISH: ["b"]}, START + 60, KEY)


@pytest.mark.parametrize(
    ("claims", "flaw"),
    [
        ({"subscribe": "a"}, "no end"),
        ({"exp": "tomorrow", "subscribe": "a"}, "no end"),
        ({"exp": float("inf"), "subscribe": "a"}, "no end"),
        ({"exp": float("nan"), "subscribe": "a"}, "no end"),
        ({"exp": 10**400, "subscribe": "a"}, "no end"),
        ({"exp": 1e300, "subscribe": "a"}, "no end"),
        ({"exp": -1, "subscribe": "a"}, "no end"),
        ({"exp": START, "subscribe": "a"}, "it ended 0 seconds ago"),
        ({"exp": START - 1, "subscribe": "a"}, "it ended 1 second ago"),
        ({"exp": START + 9, "nbf": START, "subscribe": "a"}, "nbf"),
        ({"exp": START + 9, "subscribe": [1]}, "no list of patterns"),
        ({"exp": START + 9, "subscribe": ["a"] * (MAX_PATTERNS + 1)}, "more than"),
        ([], "cannot be read"),
        ({"exp": START - 5, "subscribe": "a"}, "it ended 5 seconds ago"),
    ],
)
def test_the_refusal_says_why_a_token_grants_nothing(tmp_path: Path, claims: Any, flaw: str) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    assert not found.allows(holder(made(claims)), Action.SUBSCRIBE, "a", START)
    assert flaw in found.flaw(holder(made(claims)), START)


def test_a_token_with_extensions_that_must_be_understood_grants_nothing(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    header = {"alg": "HS256", "b64": False, "crit": ["b64"]}
    token = made({"exp": START + 9, "subscribe": "a"}, header=header)
    assert not found.allows(holder(token), Action.SUBSCRIBE, "a", START)
    assert "crit" in found.flaw(holder(token), START)


def test_a_token_with_other_usual_claims_is_accepted(tmp_path: Path) -> None:
    found = policy(tmp_path, {"signed": "k", "subscribe": "*"})
    token = made({"sub": "dashboard", "iat": 1, "exp": START + 0.5, "subscribe": "a"})
    assert found.allows(holder(token), Action.SUBSCRIBE, "a", START)


@pytest.mark.parametrize("first", ["signed", "network"])
def test_holders_of_tokens_have_shares_of_their_own_only_if_the_key_has_signed_them(tmp_path: Path, first: str) -> None:
    rules = [{"signed": "k", "publish": "*"}, {"network": "0.0.0.0/0", "subscribe": "a"}]
    found = policy(tmp_path, *(rules if first == "signed" else reversed(rules)))
    good = holder(sign({Action.PUBLISH: ["a"]}, START + 60, KEY))
    forged = holder(sign({Action.PUBLISH: ["a"]}, START + 60, OTHER))
    assert holder_of(good, found.rules_for(good, START)) != "10.0.0.1"
    assert holder_of(forged, found.rules_for(forged, START)) == "10.0.0.1"


def test_a_token_above_the_limit_of_length_is_neither_accepted_nor_made() -> None:
    rights = {Action.SUBSCRIBE: ["x" * 200] * 10}
    with pytest.raises(ValueError, match="expected at most"):
        sign(rights, START, KEY)
    assert not is_signed(made({"exp": START, "subscribe": ["x" * MAX_TOKEN]}))
    assert not is_signed("a" * 64), "a plain token"
    assert grant_of(made({"exp": START}, OTHER), KEY) is None


def test_texts_of_policies_and_peers_contain_no_key_and_no_token(tmp_path: Path) -> None:
    token = sign({Action.PUBLISH: ["a"]}, START + 60, KEY)
    assert KEY.decode() not in repr(policy(tmp_path, {"signed": "k", "publish": "*"}))
    assert token not in repr(holder(token)) + str(holder(token))


def test_an_invalid_key_file_is_refused_with_the_rule(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[[allow]]\nsigned = "short"\nsubscribe = "*"\n')
    with pytest.raises(ConfigError, match=r"table 1: signed is 'short': cannot read the key"):
        load(file)
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(ConfigError, match="has 3 characters, expected at least 32"):
        load(file)
    (tmp_path / "short").write_bytes(KEY)
    assert load(file).rules[0].signers == (KEY,)


def test_a_policy_has_a_limited_number_of_keys(tmp_path: Path) -> None:
    names = [f"key-{n}" for n in range(MAX_SIGNERS + 1)]
    for name in names:
        (tmp_path / name).write_text(name * SHORTEST_KEY)
    with pytest.raises(ValueError, match="more than 16 keys"):
        parse({"allow": [{"signed": names, "publish": "*"}]}, tmp_path)
