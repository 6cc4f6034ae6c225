"""The configuration of a server: the command line and a file are checked and merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fyrehose import plugins
from fyrehose.broker.policy import LOOPBACK
from fyrehose.broker.streams import UNLIMITED, StreamRule, StreamRules
from fyrehose.errors import ConfigError
from fyrehose.identity import Action
from fyrehose.journal.settings import Durability
from fyrehose.patterns import compiled
from fyrehose.server.config import (
    Config,
    FromFile,
    merged,
    parse_listen,
    parse_option,
    read_file,
    resolve,
)


def settings_of(config: Config, name: str) -> Any:
    return next(listener.settings for listener in config.listeners if listener.name == name)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("figg=tcp:8119:interface=127.0.0.1", ("figg", "tcp:8119:interface=127.0.0.1")),
        ("figg/office=tcp:8119", ("figg/office", "tcp:8119")),
        ("lines=unix:/run/lines", ("lines", "unix:/run/lines")),
    ],
)
def test_a_listener_is_parsed(text: str, pair: tuple[str, str]) -> None:
    assert parse_listen(text) == pair


def test_files_of_endpoints_are_found_also_behind_escaped_colons() -> None:
    endpoint = r"ssl:0:interface=127.0.0.1:privateKey=/a\:b/\\key.pem:certKey=/c.pem"
    config = resolve("data", [("figg", endpoint)], {})
    assert set(config.files.values()) == {r"/a:b/\key.pem", "/c.pem"}


@pytest.mark.parametrize("text", ["", "figg", "figg=", "=tcp:1", "tcp:8119"])
def test_invalid_listeners_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected PROTOCOL=ENDPOINT, for example figg=tcp:8119"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("figg.max-connections=500", ("figg", "max_connections", "500")),
        ("figg/office.max_connections=5", ("figg/office", "max_connections", "5")),
        ("backbone.stream=a=b", ("backbone", "stream", "a=b")),
        ("backbone.allow=", ("backbone", "allow", "")),
    ],
)
def test_an_option_is_parsed(text: str, triple: tuple[str, str, str]) -> None:
    assert parse_option(text) == triple


@pytest.mark.parametrize("text", ["", "figg", "figg=1", "figg.x", ".x=1", "figg.=1"])
def test_invalid_options_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected PROTOCOL\.NAME=VALUE, for example figg.max-connections=500"):
        parse_option(text)


def test_a_configuration_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    path.write_text(
        """
        data-dir = "/srv/data"
        policy = "policy.toml"
        log-format = "json"
        [listen]
        figg = "tcp:8119"
        "figg/office" = "tcp:8120"
        backbone = ["udp:1", "udp:2"]
        [option.figg]
        max-connections = 500
        [option.journal]
        quarantine = true
        [[stream]]
        name = "debug.*"
        keep-age = "1d"
        """
    )
    assert read_file(path) == FromFile(
        data_dir="/srv/data",
        policy=str(tmp_path / "policy.toml"),
        log_format="json",
        listen=[("figg", "tcp:8119"), ("figg/office", "tcp:8120"), ("backbone", "udp:1"), ("backbone", "udp:2")],
        options={"figg": {"max_connections": 500}, "journal": {"quarantine": True}},
        streams=StreamRules((StreamRule(names=("debug.*",), keep_age=86400.0),)),
    )


def test_relative_paths_in_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "etc: fyrehose"
    folder.mkdir()
    folder.joinpath("fyrehose.toml").write_text(
        """
        data-dir = "data"
        [listen]
        figg = ["unix:figg", "unix:address=run/figg:mode=600", "unix:/run/figg"]
        relink = 'ssl:7733:privateKey=server.key:certKey=/etc/server.pem'
        "figg/office" = "tcp:8120"
        admin = "tcp:8118"
        eventbus = "tcp:5556"
        [option.figg]
        tls-certificate = "server.pem"
        tls-key = "/etc/server.key"
        [option."figg/office"]
        tls-authorities = "clients.pem"
        [option.admin]
        token-file = ""
        [option.eventbus]
        server-key = "keys/server.key_secret"
        client-keys = "any"
        [replication]
        servers = ["nats://127.0.0.1:4222"]
        name = "a"
        token-file = "keys/journal.token"
        tls-authorities = "/etc/nats.pem"
        """
    )
    monkeypatch.chdir(tmp_path)
    found = read_file(Path("etc: fyrehose", "fyrehose.toml"))
    assert found.replication is not None
    assert found.replication.token_file == str(folder / "keys/journal.token")
    assert (found.replication.tls_authorities, found.replication.credentials) == ("/etc/nats.pem", "")
    quoted = str(folder).replace(":", "\\:")
    assert found.data_dir == str(folder / "data")
    assert found.listen == [
        ("figg", f"unix:{quoted}/figg"),
        ("figg", f"unix:address={quoted}/run/figg:mode=600"),
        ("figg", "unix:/run/figg"),
        ("relink", f"ssl:7733:privateKey={quoted}/server.key:certKey=/etc/server.pem"),
        ("figg/office", "tcp:8120"),
        ("admin", "tcp:8118"),
        ("eventbus", "tcp:5556"),
    ]
    assert found.options == {
        "figg": {"tls_certificate": str(folder / "server.pem"), "tls_key": "/etc/server.key"},
        "figg/office": {"tls_authorities": str(folder / "clients.pem")},
        "admin": {"token_file": ""},
        "eventbus": {"server_key": str(folder / "keys/server.key_secret"), "client_keys": "any"},
    }


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    path.write_text("")
    assert read_file(path) == FromFile()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen = [", "not TOML"),
        ("\x00", "not TOML"),
        (
            "data_dir = 'x'",
            "line 1: unknown key 'data_dir'; did you mean data-dir?",
        ),
        ("deep = 1", "log-format, log-level, [listen], [option.PROTOCOL], [replication], [[stream]], [[route]]"),
        ("[stream]\nname = 'a'", "stream is a table; expected tables named [[stream]], with two brackets"),
        ("[route]\nlistener = 'a'", "route is a table; expected tables named [[route]], with two brackets"),
        ("[[route]]\nlistener = 'lumberjack'", "line 1, in [[route]] table 1: stream is missing; expected a name such"),
        ("[[route]]\nstream = '{a}'", 'listener is missing; expected the name of a listener, such as "lumberjack"'),
        ("[[route]]\nlistener = 'figg'\nstream = '{a}'", "line 2, in [[route]] table 1: listener is 'figg', which has"),
        ("[[route]]\nlistener = 'x'\nstream = '{a}'", "listener is 'x', which has no routes; expected lumberjack"),
        (
            "[[route]]\nlistener = 'lumberjack'\nstream = '{a},b'",
            "line 3, in [[route]] table 1: stream is '{a},b'; expected a name without commas",
        ),
        (
            "[option.lumberjack]\nroutes = '{a}'\n[[route]]\nlistener = 'lumberjack'\nstream = '{a}'",
            "line 3, in [[route]] table 1: the option routes of lumberjack is set, too; use one of them",
        ),
        ("[[stream]]\nname = 'a'\nkeep-age = 'x'", "line 3, in [[stream]] table 1: keep-age is 'x'; expected a durat"),
        ("[[stream]]\nkeep-age = 1", "line 1, in [[stream]] table 1: name is missing; expected a pattern such as"),
        ("data-dir = 5", "line 1: data-dir is 5; expected text in quotes"),
        ("policy = ['a']", "line 1: policy is ['a']; expected text in quotes"),
        ("listen = 'figg=tcp:1'", "listen is 'figg=tcp:1'; expected a table of PROTOCOL = ENDPOINT"),
        ("[listen]\nfigg = 8119", "line 2, in [listen]: figg is 8119; expected an endpoint or a list of them"),
        ("option = 1", "line 1: option is 1; expected tables named [option.PROTOCOL]"),
        ("[option]\nfigg = 1", "in [option]: figg is 1; expected a table"),
        ("replication = 1", "line 1: replication is 1; expected a table: [replication]"),
        ("[option.fig]\nmax-payload = 1", "line 1, in [option.fig]: unknown scope 'fig' of options; expected one of j"),
        ("[listen]\nfig = 'tcp:1'", "line 2, in [listen]: unknown protocol 'fig'; expected one of"),
        ("[option.figg]\nmax_payload = 'big'", "line 2, in [option.figg]: max-payload is 'big'; expected a size"),
        ("[option.figg]\nmax-conections = 1", "line 2, in [option.figg]: unknown key 'max-conections'; did you mean"),
        ("[option.server]\nmax-streams = 0", "line 2, in [option.server]: max-streams must be at least 1, not 0"),
        ("[option.http]\ntls-key = {a = 1}", "line 2, in [option.http]: tls-key is a table; expected text, a number"),
        (
            "[listen]\nhttp = 'tcp:1'\n[option.figg]\nmax-payload = 1",
            'line 3, in [option.figg]: it has no effect, because figg does not listen; add figg = "',
        ),
        (
            "[listen]\nhttp = 'tcp:1'\n[[route]]\nlistener = 'lumberjack'\nstream = 'a'",
            "line 3, in [[route]] table 1: it has no effect, because lumberjack does not listen",
        ),
    ],
)
def test_invalid_files_are_refused_with_the_reason(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_file(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --config .*: No such file or directory"):
        read_file(tmp_path / "none.toml")


def test_limits_of_streams_reach_the_configuration() -> None:
    rules = StreamRules((StreamRule(names=("*",), new_streams=False),))
    assert resolve("data", [], {}, rules=rules).streams == rules
    assert resolve("data", [], {}).streams == UNLIMITED


def test_route_tables_are_routes_of_their_listeners_in_order(tmp_path: Path) -> None:
    path = tmp_path / "fyrehose.toml"
    tables = [("lumberjack", "logs.{fields.service}"), ("lumberjack/tls", "{certificate}"), ("lumberjack", "{topic}")]
    path.write_text("".join(f'[[route]]\nlistener = "{name}"\nstream = "{stream}"\n' for name, stream in tables))
    listen = [("lumberjack", "tcp:0"), ("lumberjack/tls", "tcp:0")]
    config = resolve("data", listen, read_file(path).options)
    assert [*map(str, settings_of(config, "lumberjack").routes)] == ["logs.{fields.service}", "{topic}"]
    assert [*map(str, settings_of(config, "lumberjack/tls").routes)] == ["{certificate}"]


def test_later_options_take_precedence() -> None:
    under = {"figg": {"a": 1, "b": 1}, "journal": {"c": 1}}
    assert merged(under, {"figg": {"b": 2}, "relink": {"d": 2}}) == {
        "figg": {"a": 1, "b": 2},
        "journal": {"c": 1},
        "relink": {"d": 2},
    }
    assert under["figg"] == {"a": 1, "b": 1}


def test_by_default_every_protocol_listens_on_loopback(tmp_path: Path) -> None:
    config = resolve("data", [], {})
    assert [listener.name for listener in config.listeners] == plugins.names()
    assert all("127.0.0.1" in listener.endpoint for listener in config.listeners)
    assert not config.explicit
    assert config.data_dir == Path.cwd() / "data"
    assert (config.server.max_streams, config.server.memory_per_connection) == (100_000, 8 << 20)
    assert config.journal.durability == Durability("batch")


def test_options_reach_their_listeners() -> None:
    listen = [("backbone", "udp:1"), ("backbone/office", "udp:2")]
    options: dict[str, Any] = {
        "backbone": {"push_rate": "7", "stream": "main"},
        "backbone/office": {"stream": "office"},
        "journal": {"durability": "interval:250"},
        "server": {"memory": "1GiB"},
    }
    config = resolve("/srv", listen, options)
    assert config.explicit
    assert [(listener.name, listener.endpoint) for listener in config.listeners] == listen
    main, office = settings_of(config, "backbone"), settings_of(config, "backbone/office")
    assert (main.stream, main.push_rate) == ("main", 7)
    assert (office.stream, office.push_rate) == ("office", 7)
    assert config.journal.durability == Durability("interval", 0.25)
    assert config.server.memory == 1 << 30


def test_the_policy_is_read_and_its_path_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text('[[allow]]\nnetwork = "10.0.0.0/8"\npublish = "*"\n')
    config = resolve("data", [], {}, "policy.toml", "json")
    assert config.policy_file == tmp_path / "policy.toml"
    assert [rule.rights[Action.PUBLISH] for rule in config.policy.rules] == [compiled(["*"])]
    assert config.log_format == "json"
    config = resolve("data", [], {})
    assert (config.policy, config.policy_file, config.log_format) == (LOOPBACK, None, "text")
    with pytest.raises(ConfigError, match=r"cannot read --policy none\.toml"):
        resolve("data", [], {}, "none.toml")
    with pytest.raises(ConfigError, match="invalid --log-format 'xml': expected text or json"):
        resolve("data", [], {}, None, "xml")


@pytest.mark.parametrize(
    ("listen", "options", "said"),
    [
        ([("fig", "tcp:1")], {}, "unknown protocol 'fig'; expected one of "),
        ([], {"fig": {"x": "1"}}, "unknown scope 'fig' of options; expected one of "),
        ([], {"backbone": {"x": "1"}}, "unknown option 'x' of backbone; available options: stream, "),
        ([("backbone", "udp:1")], {"backbone/office": {"x": "1"}}, "unknown option 'x' of backbone/office"),
        ([], {"backbone": {"push-rate": "fast"}}, "invalid value 'fast' for option backbone.push-rate: expected"),
        (
            [],
            {"journal": {"durability": "often"}},
            "invalid value 'often' for option journal.durability: expected batch, never",
        ),
        ([], {"server": {"memory": "much"}}, "invalid value 'much' for option server.memory: expected a size"),
        ([], {"server": {"max_streams": "0"}}, "max-streams must be at least 1, not 0"),
        ([], {"server": {"max_streams": "200001"}}, "max-streams must be at most 200000, not 200001"),
    ],
)
def test_invalid_configurations_are_refused_before_the_start(listen: Any, options: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve("data", listen, options)
    assert said in str(raised.value)
