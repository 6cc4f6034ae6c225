"""``fyrehose cluster``: what was heard is shown, and without a leader the status is 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import cluster
from fyrehose.cli.cluster import NatsServer, Survey
from fyrehose.cli.command import main
from fyrehose.replication.settings import ReplicationSettings

KNOWN: list[dict[str, Any]] = [
    {
        "name": name,
        "role": "leader" if name == "a" else "follower",
        "address": "10.0.0.1:8117" if name == "a" else "",
        "alive": name != "c\n",
        "heard": 67.2 if name == "c\n" else 0.1,
        "behind": behind,
        "records": records,
        "seconds": seconds,
    }
    for name, behind, records, seconds in (("a", 0, 0, 0.0), ("b", 1234, 17, 0.4), ("c\n", 5000, None, None))
]
LEADER = {
    "name": "a",
    "state": "leader",
    "epoch": 3,
    "position": 5000,
    "address": "10.0.0.1:8117",
    "leaving": False,
    "servers": KNOWN,
}
FOLLOWER = {"name": "b", "state": "follower", "epoch": 3, "position": 3766, "address": "", "leaving": False}
NODES = [
    {"name": "n1", "leads": True, "current": True, "offline": False, "lag": 0},
    {"name": "n2", "leads": False, "current": False, "offline": False, "lag": 1},
    {"name": "n3", "leads": False, "current": False, "offline": True, "lag": 700},
]
LOG = {"stream": "FYREHOSE_x", "first": 11, "last": 20, "bytes": 1234, "replicas": 3, "nodes": NODES}
SERVERS = [NatsServer("10.0.0.1:4222", True, "n1", "2.15.1"), NatsServer("10.0.0.2:4222", False)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ReplicationSettings]:
    """Return the settings with which the cluster was looked for; it has a leader and a follower."""
    return hear(monkeypatch, Survey([LEADER, FOLLOWER], LOG, SERVERS))


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
    assert ["a", "leader", "5000", "0", "0", "0.0", "10.0.0.1:8117"] in lines
    assert ["b", "follower", "3766", "1,234", "17", "0.4", "0.1", "s", "ago"] in lines
    assert "FYREHOSE_x, 10 entries (1,234 bytes) on 3 NATS servers, up to entry 20" in ended.output
    assert (asked[0].servers, asked[0].cluster) == (("nats://10.0.0.1:4222",), "x")


def test_status_shows_which_nats_servers_answer_and_which_have_the_shared_log(asked: list[ReplicationSettings]) -> None:
    lines = [line.split() for line in run("status", *NATS).output.splitlines()]
    assert ["n1", "10.0.0.1:4222", "2.15.1", "leads"] in lines
    assert ["?", "10.0.0.2:4222", "no"] in lines
    assert ["n2", "?", "?", "1", "entry", "behind"] in lines
    assert ["n3", "?", "no", "offline"] in lines


def test_status_can_be_printed_as_json(asked: list[ReplicationSettings]) -> None:
    said = json.loads(run("status", *NATS, "--format", "json").output)
    assert said["servers"] == [LEADER, FOLLOWER]
    assert said["log"] == LOG
    assert said["nats"][0] == {"address": "10.0.0.1:4222", "alive": True, "name": "n1", "version": "2.15.1"}


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


def test_of_two_servers_that_claim_to_lead_the_one_of_the_last_takeover_is_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = {**LEADER, "name": "b", "epoch": 4, "refusal": "its disk is full", "address": "10.0.0.2:8117"}
    hear(monkeypatch, Survey([LEADER, later], LOG))
    ended = run("status", *NATS)
    assert ended.exit_code == 1
    assert "server b leads, and refuses messages" in ended.output
    assert run("leader", *NATS, "--name").output == "b\n"


def test_the_status_is_1_while_jetstream_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([LEADER, FOLLOWER], None, why="permissions violation"))
    ended = run("status", *NATS)
    assert ended.exit_code == 1
    assert "JetStream does not answer (permissions violation): messages wait" in ended.output


def test_the_status_is_1_while_no_nats_server_leads_the_shared_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NATS server without the majority still answers, with what it knew."""
    nodes = [{**node, "leads": False} for node in NODES]
    hear(monkeypatch, Survey([LEADER, FOLLOWER], {**LOG, "nodes": nodes}))
    ended = run("status", *NATS)
    assert ended.exit_code == 1
    assert "no NATS server leads the shared log: messages wait" in ended.output


def test_status_lists_servers_that_only_the_leader_has_heard(asked: list[ReplicationSettings]) -> None:
    (line,) = [line for line in run("status", *NATS).output.splitlines() if "silent" in line]
    assert line.split() == ["c?", "silent", "for", "67", "s", "?", "5,000", "?", "?", "67.2", "s", "ago"]


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
