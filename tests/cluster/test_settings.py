"""The table [replication]: its options, and the errors about invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose.cluster.settings import ReplicationSettings, completed
from fyrehose.errors import ConfigError
from fyrehose.toml_files import Mistake, structured

TABLE = {"servers": ["nats://10.0.0.1:4222", "tls://10.0.0.2:4222"], "name": "a"}


def parse(table: dict[str, Any]) -> ReplicationSettings:
    return completed(structured(ReplicationSettings, table), "")


def test_a_table_with_only_servers_and_a_name_is_valid() -> None:
    settings = parse(TABLE)
    assert settings.servers == ("nats://10.0.0.1:4222", "tls://10.0.0.2:4222")
    assert (settings.name, settings.cluster, settings.replicas, settings.takeover_after) == ("a", "fyrehose", 3, 2.0)


def test_options_may_be_written_with_hyphens() -> None:
    assert parse({**TABLE, "takeover-after": "5s", "members": 2}).takeover_after == 5.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"servers": []}, "addresses such as"),
        ({"servers": ["10.0.0.1:4222"]}, "addresses such as"),
        ({"name": "a b"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"cluster": "a.b"}, "letters, digits"),
        ({"replicas": 0}, "replicas"),
        ({"members": 65}, "at most 64"),
        ({"takeover-after": "10ms"}, "takeover"),
        ({"server": "x"}, "server"),
    ],
)
def test_invalid_options_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Mistake, match=said):
        parse({**TABLE, **change})


def test_missing_servers_are_refused() -> None:
    with pytest.raises(Mistake, match="servers is missing"):
        parse({"name": "a"})


def test_a_server_without_a_name_has_that_of_its_host() -> None:
    settings = structured(ReplicationSettings, {"servers": TABLE["servers"]})
    assert completed(settings, "", lambda: "node-7.example.org").name == "node-7"
    with pytest.raises(Mistake, match="because the host name 'node 7' cannot be used"):
        completed(settings, "", lambda: "node 7")


def test_a_user_needs_a_password_file_that_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for more in ({"user": "a"}, {"password-file": str(file)}):
        with pytest.raises(Mistake, match="both user and password-file"):
            parse({**TABLE, **more})
    settings = parse({**TABLE, "user": "a", "password-file": str(file)})
    with pytest.raises(ConfigError, match=r"cannot read password-file .*: No such file"):
        settings.connect_options()
    file.write_text("secret\n")
    options = settings.connect_options()
    assert (options["user"], options["password"]()) == ("a", "secret")


def test_answers_of_nats_use_the_inbox_that_the_user_may_subscribe_to() -> None:
    assert parse({**TABLE, "cluster": "x"}).connect_options()["inbox_prefix"] == "fyrehose.x.inbox.a"


def test_passwords_in_addresses_are_not_shown() -> None:
    settings = parse({**TABLE, "servers": ["nats://user:p@ss@10.0.0.1:4222", "nats://10.0.0.2:4222"]})
    assert settings.shown_servers == "nats://10.0.0.1:4222, nats://10.0.0.2:4222"
