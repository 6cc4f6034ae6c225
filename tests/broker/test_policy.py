"""Rules of access policies: how they match, how they are written, and which are refused."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.broker.policy import LOOPBACK, MAX_RULES, OPEN, Policy, Rule, in_networks, load, parse
from fyrehose.errors import ConfigError
from fyrehose.identity import Action, Identity, digest

PUBLISH, SUBSCRIBE = Action.PUBLISH, Action.SUBSCRIBE
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def policy(*rules: dict[str, Any]) -> Policy:
    return parse({"allow": list(rules)})


@pytest.mark.parametrize(
    ("host", "networks", "lies"),
    [
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("11.1.2.3", ["10.0.0.0/8", "11.0.0.0/8"], True),
        ("12.1.2.3", ["10.0.0.0/8", "11.0.0.0/8"], False),
        ("fd00::1", ["fd00::/8"], True),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("::1", ["0.0.0.0/0"], False),
        ("nonsense", ["0.0.0.0/0", "::/0"], False),
        ("\xff", ["0.0.0.0/0", "::/0"], False),
    ],
)
def test_an_address_matches_the_networks_that_contain_it(host: str, networks: list[str], lies: bool) -> None:
    assert in_networks(host, tuple(map(ip_network, networks))) == lies


@pytest.mark.parametrize(
    ("rule", "identity", "meets"),
    [
        ({"network": "10.0.0.0/8"}, Identity(host="10.1.1.1"), True),
        ({"network": "10.0.0.0/8"}, Identity(), False),
        ({"network": "127.0.0.1"}, Identity(), True),
        ({"certificate": "beats-*"}, Identity(certificates=("beats-7",)), True),
        ({"certificate": "beats-*"}, Identity(certificates=("other", "beats-7")), True),
        ({"certificate": "beats-*"}, Identity(certificates=("my-beats-7",)), False),
        ({"certificate": "*"}, Identity(certificates=("who\never",)), True),
        ({"certificate": "*"}, Identity(), False),
        ({"certificate": "a.b"}, Identity(certificates=("aXb",)), False),
        ({"key": KEY}, Identity(key=KEY), True),
        ({"key": KEY}, Identity(key=KEY[::-1]), False),
        ({"key": "*"}, Identity(key=KEY), True),
        ({"key": "*"}, Identity(), False),
        ({"token": f"sha256:{digest('secret')}"}, Identity(token=digest("secret")), True),
        ({"token": f"sha256:{digest('secret')}"}, Identity(token=digest("Secret")), False),
        ({"token": f"sha256:{digest('secret')}"}, Identity(token="secret"), False),
        ({"token": f"sha256:{digest('secret')}"}, Identity(), False),
        ({"network": "10.0.0.0/8", "certificate": "a"}, Identity(host="10.0.0.1", certificates=("a",)), True),
        ({"network": "10.0.0.0/8", "certificate": "a"}, Identity(host="10.0.0.1"), False),
        ({"network": "10.0.0.0/8", "certificate": "a"}, Identity(host="11.0.0.1", certificates=("a",)), False),
        ({"network": ["10.0.0.0/8", "11.0.0.0/8"]}, Identity(host="11.0.0.1"), True),
    ],
)
def test_a_rule_applies_only_if_every_condition_is_met(rule: dict[str, Any], identity: Identity, meets: bool) -> None:
    assert policy({**rule, "publish": "s"}).allows(identity, PUBLISH, "s") == meets


@pytest.mark.parametrize(
    ("pattern", "stream", "covers"),
    [
        ("*", "anything at all\n", True),
        ("logs.*", "logs.web", True),
        ("logs.*", "logs.", True),
        ("logs.*", "logs", False),
        ("logs.*", "logsXweb", False),
        ("*.web", "logs.web", True),
        ("a*c*e", "abcde", True),
        ("a*c*e", "abde", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("*", ".relink/7", False),
        ("*relink*", ".relink/7", False),
        (".*", ".relink/7", True),
        (".relink/*", ".relink/7", True),
        (".*", "relink", False),
    ],
)
def test_patterns_match_streams(pattern: str, stream: str, covers: bool) -> None:
    assert policy({"network": "0.0.0.0/0", "publish": pattern}).allows(Identity(), PUBLISH, stream) == covers


def test_actions_are_allowed_separately_and_rules_add_up() -> None:
    found = policy(
        {"network": "10.0.0.0/8", "publish": "in", "subscribe": ["out", "log.*"]},
        {"certificate": "boss", "subscribe": "*"},
    )
    worker = Identity(host="10.0.0.1")
    boss = Identity(host="10.0.0.1", certificates=("boss",))
    assert found.allows(worker, PUBLISH, "in")
    assert not found.allows(worker, SUBSCRIBE, "in")
    assert found.allows(worker, SUBSCRIBE, "log.web")
    assert not found.allows(worker, PUBLISH, "log.web")
    assert found.allows(boss, SUBSCRIBE, "in")
    assert found.allows(boss, PUBLISH, "in")
    assert not found.allows(Identity(host="9.9.9.9", certificates=("boss",)), PUBLISH, "in")


def test_without_a_policy_only_this_machine_has_access() -> None:
    for action in Action:
        for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
            assert LOOPBACK.allows(Identity(host=host), action, "s")
            assert not LOOPBACK.allows(Identity(host=host), action, ".relink/1"), "these are the server's own"
        for host in ("10.0.0.1", "::2", "nonsense"):
            assert not LOOPBACK.allows(Identity(host=host, certificates=("boss",)), action, "s")
        assert OPEN.allows(Identity(host="nonsense"), action, ".relink/1")


EXAMPLE = f"""
[[allow]]
network = ["10.1.0.0/16", "127.0.0.1"]
certificate = "beats-*"
publish = ["lumberjack", "logs.*"]

[[allow]]
key = "{KEY}"
publish = "eventbus"
subscribe = "*"
"""


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(EXAMPLE)
    assert load(path) == Policy(
        (
            Rule(
                networks=(ip_network("10.1.0.0/16"), ip_network("127.0.0.1/32")),
                certificates=("beats-*",),
                rights={PUBLISH: ("lumberjack", "logs.*")},
            ),
            Rule(keys=(KEY,), rights={PUBLISH: ("eventbus",), SUBSCRIBE: ("*",)}),
        )
    )


WHO = {"network": "10.0.0.0/8"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, r"no \[\[allow\]\] table, so no peer would have access"),
        ({"allow": []}, r"no \[\[allow\]\] table"),
        ({"allow": {"network": "10.0.0.0/8"}}, r"allow is a table; expected tables named \[\[allow\]\], with two br"),
        ({"allow": [{**WHO, "publish": "*"}], "deny": []}, r"unknown key 'deny'; expected \[\[allow\]\]"),
        (
            {"allow": [{**WHO, "publish": "*"}, {**WHO, "pubish": "*"}]},
            r"\[\[allow\]\] table 2: unknown key 'pubish'; did you mean publish?",
        ),
        ({"allow": [{"publish": "*"}]}, "table 1: no condition"),
        ({"allow": [{"network": [], "publish": "*"}]}, "table 1: no condition"),
        ({"allow": [WHO]}, "table 1: it allows nothing"),
        ({"allow": [{**WHO, "subscribe": []}]}, "table 1: it allows nothing"),
        ({"allow": [{**WHO, "publish": 7}]}, "table 1: publish is 7; expected text"),
        ({"allow": [{**WHO, "publish": ["a", ""]}]}, "none of them empty"),
        ({"allow": [{"network": "10.0.0.1/8", "publish": "*"}]}, "table 1: network is '10.0.0.1/8'.*host bits set"),
        ({"allow": [{"network": "here", "publish": "*"}]}, "table 1: network is 'here'"),
        ({"allow": [{"key": "short", "publish": "*"}]}, "40 characters of a public key"),
        ({"allow": [{**WHO, "publish": "*"}] * (MAX_RULES + 1)}, "1001 rules exceed the limit of 1000"),
    ],
)
def test_invalid_policies_are_refused_with_the_reason(content: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(content)


def test_the_error_of_an_invalid_token_does_not_quote_it() -> None:
    with pytest.raises(ValueError, match="sha256") as raised:
        policy({"token": "hunter2", "publish": "*"})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[allow", "not TOML"),
        ("", "so no peer would have access"),
        (b"\xff", "not TOML"),
        (None, "No such file"),
    ],
)
def test_unusable_files_are_refused_with_their_path(tmp_path: Path, text: str | bytes | None, said: str) -> None:
    path = tmp_path / "policy.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=f"--policy .*policy.toml.*{said}"):
        load(path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10
)


@given(content=ANYTHING)
def test_any_content_of_a_file_is_a_policy_or_raises_a_value_error(content: Any) -> None:
    for said in (content, {"allow": content}, {"allow": [{"network": content, "publish": "*"}]}):
        if isinstance(said, dict):
            with suppress(ValueError):
                assert isinstance(parse(said), Policy)


@pytest.mark.parametrize(
    ("rule", "host", "proofs", "admitted"),
    [
        ({"network": "10.0.0.0/8"}, "10.0.0.1", (), True),
        ({"network": "10.0.0.0/8"}, "11.0.0.1", ("certificate", "key", "token"), False),
        ({"certificate": "x"}, "11.0.0.1", (), False),
        ({"certificate": "x"}, "11.0.0.1", ("certificate",), True),
        ({"certificate": "x", "network": "10.0.0.0/8"}, "11.0.0.1", ("certificate",), False),
        ({"token": f"sha256:{'0' * 64}"}, "11.0.0.1", ("certificate",), False),
        ({"token": f"sha256:{'0' * 64}"}, "11.0.0.1", ("token",), True),
        ({"token": f"sha256:{'0' * 64}", "certificate": "x"}, "11.0.0.1", ("token",), False),
        ({"key": "*"}, "11.0.0.1", ("certificate", "token"), False),
        ({"key": "*"}, "11.0.0.1", ("key",), True),
    ],
)
def test_a_peer_is_admitted_while_a_rule_may_still_be_met(
    rule: dict[str, str], host: str, proofs: tuple[str, ...], admitted: bool
) -> None:
    policy = parse({"allow": [{"network": "192.168.0.1", "publish": "*"}, {**rule, "subscribe": "s"}]})
    assert policy.admits(Identity(host=host), proofs) is admitted


def test_access_to_every_stream_requires_a_rule_for_all_streams() -> None:
    policy = parse(
        {
            "allow": [
                {"network": "10.0.0.1", "publish": "*", "subscribe": "a*"},
                {"network": "10.0.0.2", "subscribe": ["a", "*"]},
            ]
        }
    )
    one, other, third = (Identity(host=f"10.0.0.{n}") for n in (1, 2, 3))
    assert [policy.allows_every(who, Action.SUBSCRIBE) for who in (one, other, third)] == [False, True, False]
    assert [policy.allows_every(who, Action.PUBLISH) for who in (one, other, third)] == [True, False, False]
