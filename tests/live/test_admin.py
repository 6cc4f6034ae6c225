"""Test the admin listener of a real server: from the command line, with TLS and a token, and refused without them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fyrehose.testing.certificates import Authority
from tests.live.conftest import PATIENCE, fyrehose

pytestmark = [pytest.mark.live, pytest.mark.slow]

LISTENERS = ("--listen", "admin=tcp:0:interface=127.0.0.1", "--listen", "figg=tcp:0:interface=127.0.0.1")
TOKEN = "0123456789abcdef0123"


def test_commands_show_the_state_of_a_server_started_from_the_command_line(start: Any) -> None:
    server = start(*LISTENERS)
    url = f"http://127.0.0.1:{server.port('admin')}"
    to = ("--to", f"127.0.0.1:{server.port('figg')}")
    for stream, messages in (("orders", ("a", "b", "c")), ("log", ("d",))):
        fyrehose("publish", *to, "--stream", stream, *messages)
    (orders,) = map(json.loads, fyrehose("streams", "--url", url, "--format", "json", "ord").stdout.splitlines())
    assert (orders["name"], orders["last"]) == ("orders", 3)
    rows = [line.split() for line in fyrehose("streams", "--url", url).stdout.splitlines()]
    assert {row[0] for row in rows} >= {"stream", "orders", "log"}
    assert "journal writable, durability batch" in fyrehose("stats", "--url", url).stdout
    stats = json.loads(fyrehose("stats", "--url", url, "--format", "json").stdout)
    assert {each["name"]: each["published_messages"] for each in stats["protocols"]}["figg"] == 4
    assert stats["journal"]["durable"] > 0
    looks = fyrehose("top", "--url", url, "--count", "2", "--interval", "0.5", "--format", "json").stdout.splitlines()
    assert [json.loads(look)["streams"]["total"] for look in looks] == [2, 2]
    assert "orders" in fyrehose("top", "--url", url, "--count", "1").stdout
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    published = {s.labels["protocol"]: s.value for s in families["fyrehose_published_messages"].samples}
    assert published["figg"] == 4
    (durable,) = families["fyrehose_journal_durable_bytes"].samples
    assert durable.value == stats["journal"]["durable"]
    server.stop()
    assert "cannot connect to" in fyrehose("stats", "--url", url, status=1).stderr


def test_the_admin_listener_is_reached_with_tls_and_a_token(start: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("localhost", "localhost")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    options = {"tls-certificate": files.certificate, "tls-key": files.key, "token-file": token}
    words = [word for name, value in options.items() for word in ("--option", f"admin.{name}={value}")]
    server = start("--listen", "admin=tcp:0", *words)  # an endpoint beyond loopback is allowed with TLS and a token
    url = f"https://localhost:{server.port('admin')}"
    trusted = ("--url", url, "--ca", authority.certificate)
    assert "durability batch" in fyrehose("stats", *trusted, "--token-file", str(token)).stdout
    assert "requires a token" in fyrehose("stats", *trusted, status=1).stderr
    token.write_text("another one, that is wrong")
    assert "does not accept the token" in fyrehose("stats", *trusted, "--token-file", str(token), status=1).stderr
    assert "certificate verification failed" in fyrehose("stats", "--url", url, status=1).stderr
