"""``fyrehose cluster``: what was heard is shown, and without a leader the status is 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import cluster
from fyrehose.cli.cluster import Survey
from fyrehose.cli.command import main
from fyrehose.replication.settings import ReplicationSettings

LEADER = {"name": "a", "state": "leader", "epoch": 3, "position": 5000, "address": "10.0.0.1:8117", "leaving": False}
FOLLOWER = {"name": "b", "state": "follower", "epoch": 3, "position": 3766, "address": "", "leaving": False}
LOG = {"stream": "FYREHOSE_x", "first": 11, "last": 20, "bytes": 1234, "replicas": 3, "node": "n1"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ReplicationSettings]:
    """Return the settings with which the cluster was looked for; it has a leader and a follower."""
    return hear(monkeypatch, Survey([LEADER, FOLLOWER], LOG))


def hear(monkeypatch: pytest.MonkeyPatch, found: Survey) -> list[ReplicationSettings]:
    asked: list[ReplicationSettings] = []

    async def survey(settings: ReplicationSettings, *rest: Any) -> Survey:
        asked.append(settings)
        return found

    monkeypatch.setattr(cluster, "survey", survey)
    return asked


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *words], env={"COLUMNS": "100"})


NATS = ("--nats", "nats://10.0.0.1:4222")


def test_status_shows_who_leads_and_how_far_the_others_are_behind(asked: list[ReplicationSettings]) -> None:
    ended = run("status", *NATS, "--cluster", "x")
    assert ended.exit_code == 0
    lines = [line.split() for line in ended.output.splitlines()]
    assert ["a", "leader", "3", "5000", "0", "10.0.0.1:8117"] in lines
    assert ["b", "follower", "3", "3766", "1,234"] in lines
    assert "FYREHOSE_x, 10 entries (1,234 bytes) on 3 NATS servers, up to entry 20" in ended.output
    assert (asked[0].servers, asked[0].cluster) == (("nats://10.0.0.1:4222",), "x")


def test_status_as_json(asked: list[ReplicationSettings]) -> None:
    assert json.loads(run("status", *NATS, "--format", "json").output) == {"servers": [LEADER, FOLLOWER], "log": LOG}


@pytest.mark.parametrize("servers", [[], [FOLLOWER], [{**LEADER, "leaving": True}]])
def test_without_a_leader_the_status_is_1(monkeypatch: pytest.MonkeyPatch, servers: list[dict[str, Any]]) -> None:
    hear(monkeypatch, Survey(servers, None))
    ended = run("status", *NATS)
    assert ended.exit_code == 1
    assert "JetStream does not answer" in ended.output
    assert "no server leads" in ended.output
    assert run("leader", *NATS).exit_code == 1


def test_a_leader_that_refuses_messages_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([{**LEADER, "refusal": "its disk is full"}, FOLLOWER], LOG))
    ended = run("status", *NATS)
    assert ended.exit_code == 1
    assert "server a leads, and refuses messages: its disk is full" in ended.output


def test_status_lists_servers_that_only_the_leader_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([{**LEADER, "refusal": "", "silent": {"b": 0.1, "c\n": 67.2}}, FOLLOWER], LOG))
    ended = run("status", *NATS)
    assert ended.exit_code == 0
    (line,) = [line for line in ended.output.splitlines() if "silent" in line]
    assert line.split() == ["c?", "silent", "for", "67", "s"]


def test_leader_prints_its_address_or_its_name(asked: list[ReplicationSettings]) -> None:
    assert run("leader", *NATS).output == "10.0.0.1:8117\n"
    assert run("leader", *NATS, "--name").output == "a\n"


def test_a_leader_without_an_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([{**LEADER, "address": ""}], LOG))
    assert "has no address in [replication]" in run("leader", *NATS).output
    assert run("leader", *NATS, "--name").output == "a\n"


def test_the_cluster_is_named_by_a_configuration_file(asked: list[ReplicationSettings], tmp_path: Path) -> None:
    config = tmp_path / "fyrehose.toml"
    config.write_text('[replication]\nservers = ["nats://10.0.0.9:4222"]\nname = "a"\n')
    assert run("status", "--config", str(config)).exit_code == 0
    assert asked[0].servers == ("nats://10.0.0.9:4222",)
    config.write_text("")
    assert "has no table [replication]" in run("status", "--config", str(config)).output


@pytest.mark.parametrize("words", [(), (*NATS, "--config", "x.toml")])
def test_a_configuration_or_an_address_is_needed_and_not_both(words: tuple[str, ...]) -> None:
    assert "either --config FILE or --nats URL" in run("status", *words).output


def test_unreachable_nats_is_reported_in_one_line() -> None:
    ended = run("status", "--nats", "nats://127.0.0.1:1")
    assert ended.exit_code == 1
    assert ended.output.startswith("fyrehose: no NATS server of nats://127.0.0.1:1 can be reached")
    assert ended.output.count("\n") == 1
