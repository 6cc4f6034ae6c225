"""``fyrehose cluster members``, ``add``, ``remove``, ``replace``: what they show, ask for and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import cluster
from fyrehose.cli.cluster import Survey
from fyrehose.cli.command import main
from fyrehose.errors import FyrehoseError
from fyrehose.replication.members import MemberChange, Members
from fyrehose.replication.settings import ReplicationSettings
from tests.cli.test_cluster import FOLLOWER, KNOWN, LEADER, NATS

THREE = Members(5, ("a", "b", "c"), places=1)


def survey_of(members: Members | None, *more: dict[str, Any]) -> Survey:
    said = {} if members is None else {"listed": members.pack().decode()}
    known = [{**each, "name": each["name"].strip()} for each in KNOWN]
    return Survey([{**LEADER, **said, "servers": known}, FOLLOWER, *more], None)


@attrs.define
class Message:
    data: bytes


@attrs.define
class Client:
    """A connection to NATS, behind which a leader answers.

    :ivar deaf: how many requests are lost
    """

    members: Members = THREE
    deaf: int = 1
    requests: list[MemberChange] = attrs.field(factory=list)
    subjects: list[str] = attrs.field(factory=list)
    _heard: Callable[[Message], Any] = attrs.field(init=False)

    async def subscribe(self, subject: str, cb: Callable[[Message], Any]) -> None:
        self.subjects.append(subject)
        self._heard = cb

    async def publish(self, subject: str, message: bytes) -> None:
        change = MemberChange.unpack(message)
        assert change is not None
        self.subjects.append(subject)
        self.requests.append(change)
        if len(self.requests) <= self.deaf:
            return
        refused = ""
        try:
            self.members = change.apply(self.members)
        except FyrehoseError as error:
            refused = str(error)
        for ident in ("another", change.ident):
            said = {**LEADER, "listed": self.members.pack().decode(), "answer": {"id": ident, "refused": refused}}
            await self._heard(Message(json.dumps(said).encode()))

    async def close(self) -> None:
        self.subjects.append("closed")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    async def survey(settings: ReplicationSettings, *_: Any) -> Survey:
        return survey_of(made.members)

    async def connect(settings: ReplicationSettings, errors: list[Exception]) -> Client:
        return made

    monkeypatch.setattr(cluster, "survey", survey)
    monkeypatch.setattr(cluster, "connect", connect)
    return made


def hear(monkeypatch: pytest.MonkeyPatch, found: Survey) -> None:
    async def survey(*_: Any) -> Survey:
        return found

    monkeypatch.setattr(cluster, "survey", survey)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *words], env={"COLUMNS": "100"})


def test_members_shows_the_state_of_each_member_and_free_places(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(5, ("a", "b", "c", "d"), places=1)
    hear(monkeypatch, survey_of(members, {"name": "x\n", "state": "follower"}))
    ended = run("members", *NATS)
    assert ended.exit_code == 0
    lines = [line.strip().split(maxsplit=1) for line in ended.output.splitlines()]
    assert lines[1:] == [
        ["a", "leader"],
        ["b", "follower"],
        ["c", "silent for 67 s"],
        ["d", "not heard"],
        ["x?", "not a member"],
        ["1", "place is free: the next new servers take them"],
    ]


def test_members_can_be_printed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, survey_of(Members(5, ("a", "b"))))
    assert json.loads(run("members", *NATS, "--format", "json").output) == {
        "version": 5,
        "places": 0,
        "servers": [
            {"name": "a", "member": True, "state": "leader"},
            {"name": "b", "member": True, "state": "follower"},
        ],
    }


@pytest.mark.parametrize("said", [None, "x", "1 0"])
def test_members_fails_if_no_server_has_a_list_of_members(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    hear(monkeypatch, Survey([LEADER if said is None else {**LEADER, "listed": said}], None))
    ended = run("members", *NATS)
    assert ended.exit_code == 1
    assert "no server knows the members" in ended.output


def test_a_request_is_repeated_until_the_leader_answers(client: Client) -> None:
    ended = run("add", "d", *NATS, "--cluster", "x")
    assert ended.exit_code == 0, ended.output
    assert ended.output == "the members are a, b, c and d\n"
    assert client.subjects == ["fyrehose.x.say", "fyrehose.x.members", "fyrehose.x.members", "closed"]
    assert len({request.ident for request in client.requests}) == 1


def test_add_and_replace_use_the_server_name_in_the_configuration_file(client: Client, tmp_path: Path) -> None:
    config = tmp_path / "fyrehose.toml"
    config.write_text('[replication]\nservers = ["nats://10.0.0.9:4222"]\nname = "new"\n')
    assert run("replace", "c", "--config", str(config)).output == "the members are a, b and new (1 place is free)\n"
    client.members = THREE
    assert run("add", "--config", str(config)).output == "the members are a, b, c and new\n"
    assert "pass the name of the server" in run("add", *NATS).output


def test_remove_removes_a_server_or_all_free_places(client: Client) -> None:
    assert run("remove", "c", *NATS).output == "the members are a and b (1 place is free)\n"
    assert run("remove", "--places", *NATS).output == "the members are a and b\n"
    for words in (("remove",), ("remove", "a", "--places")):
        assert "either the name of a server or --places" in run(*words, *NATS).output


def test_a_change_that_the_leader_refuses_is_an_error(client: Client) -> None:
    client.members = Members(5, ("a", "b"))
    ended = run("remove", "b", *NATS)
    assert ended.exit_code == 1
    assert ended.output.startswith("fyrehose: b cannot be removed")


def test_a_name_that_is_no_member_is_not_removed(client: Client) -> None:
    assert "x is not a member; the members are a, b and c" in run("remove", "x", *NATS).output
    assert "'x y' is not the name of a server" in run("remove", "x y", *NATS).output
    assert not client.requests


def test_without_a_leader_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([FOLLOWER], None))
    ended = run("add", "d", *NATS, "--wait", "1s")
    assert ended.exit_code == 1
    assert "no server leads, so the members cannot be changed; listened for 1 s" in ended.output


def test_without_an_answer_the_outcome_is_unknown(client: Client) -> None:
    client.deaf = 100
    ended = run("add", "d", *NATS, "--wait", "1s")
    assert ended.exit_code == 1
    assert "whether the members were changed is unknown" in ended.output
    assert len(client.requests) > 1
