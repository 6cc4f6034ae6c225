"""Test identities of peers, and the networks that share limits."""

from __future__ import annotations

from hashlib import sha256

import pytest

from fyrehose.identity import Identity, digest, network_of

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("UNIXAddress", "UNIXAddress"),
        ("?", "?"),
    ],
)
def test_an_ipv6_address_counts_with_its_whole_64_bit_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_the_text_of_an_identity_contains_no_secret() -> None:
    assert str(Identity(host="10.0.0.1")) == "10.0.0.1"
    whole = Identity(host="10.0.0.1", certificates=("a\x1b[2J",), key=KEY, token=digest("secret"))
    assert str(whole) == f"10.0.0.1 (certificate 'a\\x1b[2J', key {KEY}, with a token)"
    assert digest("secret") not in repr(whole)
    assert digest("secret") == sha256(b"secret").hexdigest()
    assert (whole.name, Identity().name) == ("a\x1b[2J", None)
