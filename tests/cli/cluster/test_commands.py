"""``fyrehose cluster``: what was heard is shown, and without a leader the status is 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.cluster import commands as cluster
from fyrehose.cli.cluster.survey import NatsServer, Survey, refusal
from fyrehose.cli.command import main
from fyrehose.cluster.members import MAINTENANCE, ChangeKind, MemberChange, Members
from fyrehose.cluster.settings import ReplicationSettings
from fyrehose.errors import FyrehoseError

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
    "incarnation": 7,
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
HEALTHY = [NODES[0], *({**NODES[0], "name": name, "leads": False} for name in ("n2", "n3"))]
LOG: dict[str, Any] = {"stream": "FYREHOSE_x", "first": 11, "last": 20, "bytes": 1234, "replicas": 3, "nodes": NODES}
WHOLE = {**LOG, "nodes": HEALTHY}
SERVERS = [NatsServer("10.0.0.1:4222", True, "n1", "2.15.1"), NatsServer("10.0.0.2:4222", False)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ReplicationSettings]:
    """Replace the survey by that of a leader and a follower; return the settings with which it is called."""
    return hear(monkeypatch, Survey([LEADER, FOLLOWER], WHOLE, SERVERS[:1]))


@pytest.fixture
def weakened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the survey by one in which two of three NATS servers lack entries."""
    hear(monkeypatch, Survey([LEADER, FOLLOWER], LOG, SERVERS))


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


@pytest.mark.parametrize(("first", "last", "count"), [(0, 0, "0 entries"), (1, 1, "1 entry"), (11, 10, "0 entries")])
def test_status_counts_the_entries_of_the_shared_log(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, count: str
) -> None:
    hear(monkeypatch, Survey([LEADER, FOLLOWER], {**WHOLE, "first": first, "last": last}))
    assert f"FYREHOSE_x, {count} (1,234 bytes) on 3 NATS servers, up to entry {last}" in run("status", *NATS).output


def test_status_shows_which_nats_servers_answer_and_which_have_the_shared_log(weakened: None) -> None:
    lines = [line.split() for line in run("status", *NATS).output.splitlines()]
    assert ["n1", "10.0.0.1:4222", "2.15.1", "leads"] in lines
    assert ["?", "10.0.0.2:4222", "no"] in lines
    assert ["n2", "?", "?", "1", "entry", "behind"] in lines
    assert ["n3", "?", "no", "offline"] in lines


STOPPED = NatsServer("10.0.0.2:4222", True, "n2", jetstream=False)
LOST = NatsServer("10.0.0.3:4222", False)
REFUSING = {**LEADER, "refusal": "its disk is full"}
#: NATS servers that have lost the majority still answer, with the state of the log at that moment.
LED_BY_NONE = {**LOG, "nodes": [{**node, "leads": False} for node in HEALTHY]}


@pytest.mark.parametrize(
    ("servers", "log", "nats", "status", "said"),
    [
        ([LEADER], LOG, SERVERS, 8, "stored on 1 of 3 NATS servers; n2 lacks 1 entry; n3 is offline"),
        ([LEADER], LOG, SERVERS, 8, "start it, or a new machine with its server_name"),
        ([LEADER], WHOLE, [SERVERS[0], STOPPED], 8, "JetStream is off on n2"),
        ([LEADER], WHOLE, [SERVERS[0], STOPPED], 8, "systemctl restart nats"),
        ([LEADER], LED_BY_NONE, [], 1, "no NATS server leads the shared log: messages wait"),
        ([LEADER], None, [], 1, "JetStream does not answer (permissions violation): messages wait"),
        ([REFUSING, FOLLOWER], LOG, [], 1, "server a leads, and refuses messages: its disk is full"),
        ([LEADER, {**REFUSING, "name": "b", "epoch": 4}], LOG, [], 1, "server b leads, and refuses messages"),
        ([FOLLOWER], None, [], 1, "JetStream does not answer"),
        ([], LOG, [], 1, "no server leads"),
        ([FOLLOWER], LOG, [], 1, "no server leads"),
        ([{**LEADER, "leaving": True}], LOG, [], 1, "no server leads"),
    ],
)
def test_status_says_why_messages_wait_or_are_stored_on_too_few_servers(
    monkeypatch: pytest.MonkeyPatch, servers: list[Any], log: Any, nats: list[NatsServer], status: int, said: str
) -> None:
    hear(monkeypatch, Survey(servers, log, nats, why="permissions violation"))
    ended = run("status", *NATS)
    assert ended.exit_code == status
    assert said in " ".join(ended.output.split())


@pytest.mark.parametrize("log", [None, LED_BY_NONE], ids=["JetStream is silent", "no server leads the log"])
@pytest.mark.parametrize("count", range(1, 6))
def test_majority_of_nats_servers_is_lost_from_one_half_on(count: int, log: dict[str, Any] | None) -> None:
    for states in product(("answers", "is lost", "stopped"), repeat=count):
        made = {"answers": SERVERS[0], "is lost": LOST, "stopped": STOPPED}
        found = refusal(Survey([REFUSING], log, [made[state] for state in states]))
        said = [f"{LOST.address} does not answer"] * states.count("is lost")
        said += ["JetStream is off on n2, because its store was full or failed"] * states.count("stopped")
        if len(said) >= count / 2:
            expected = f"{len(said)} of {count} NATS servers are lost ({', '.join(said)}), and without a majority"
        else:
            expected = "server a leads, and refuses messages: its disk is full"
        assert found.startswith(expected), f"with servers of which each {', '.join(states)}"


def test_status_says_why_a_server_should_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, Survey([LEADER, {**FOLLOWER, "unfit": "its disk is\nfull"}], LOG, SERVERS))
    assert "follower (its disk is?full)" in run("status", *NATS).output


def test_status_can_be_printed_as_json(asked: list[ReplicationSettings]) -> None:
    said = json.loads(run("status", *NATS, "--format", "json").output)
    assert said["servers"] == [LEADER, FOLLOWER]
    assert said["log"] == WHOLE
    about = {"address": "10.0.0.1:4222", "alive": True, "name": "n1", "version": "2.15.1", "jetstream": True}
    assert said["nats"][0] == about


def test_status_lists_servers_that_only_the_leader_has_heard(asked: list[ReplicationSettings]) -> None:
    (line,) = [line for line in run("status", *NATS).output.splitlines() if "silent" in line]
    assert line.split() == ["c?", "silent", "for", "67", "s", "?", "5,000", "?", "?", "67.2", "s", "ago"]


@pytest.mark.parametrize(
    ("servers", "address", "name"),
    [
        ([LEADER, FOLLOWER], "10.0.0.1:8117\n", "a\n"),
        ([LEADER, {**LEADER, "name": "b", "epoch": 4, "address": "10.0.0.2:8117"}], "10.0.0.2:8117\n", "b\n"),
        ([{**LEADER, "address": ""}], "set address in [replication]", "a\n"),
        ([], "no server leads", "no server leads"),
    ],
)
def test_leader_prints_its_address_or_its_name(
    monkeypatch: pytest.MonkeyPatch, servers: list[dict[str, Any]], address: str, name: str
) -> None:
    hear(monkeypatch, Survey(servers, LOG))
    for words, said in (((), address), (("--name",), name)):
        ended = run("leader", *NATS, *words)
        assert ended.output == said if said.endswith("\n") else (said in ended.output and ended.exit_code == 1)


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
    :ivar moves: what the servers say after a request about which server leads, by its kind
    """

    members: Members = THREE
    deaf: int = 1
    requests: list[MemberChange] = attrs.field(factory=list)
    subjects: list[str] = attrs.field(factory=list)
    moves: dict[ChangeKind, list[dict[str, Any]]] = attrs.field(factory=dict)
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
        if change.kind in self.moves:
            for said in self.moves[change.kind]:
                await self._heard(Message(json.dumps({**FOLLOWER, "incarnation": 5, **said}).encode()))
            return
        try:
            self.members = change.apply(self.members)
        except FyrehoseError as error:
            refused = str(error)
        for foreign in (b"no JSON", b"[" * 60_000, b"[1]", json.dumps({**LEADER, "answer": "yes"}).encode()):
            await self._heard(Message(foreign))
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


@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_members_are_those_of_the_newest_list_of_all_servers(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    made = [Members(5, ("a", "b")), Members(4, ("a", "b", "c"), places=1), Members(3, ("a", "d"))]
    lists = ["no list", *(each.pack().decode() for each in made)]
    known = [{**LEADER, "servers": []}, FOLLOWER, {**FOLLOWER, "name": "c"}, {**FOLLOWER, "name": "d"}]
    said = [{**server, "listed": lists[number]} for server, number in zip(known, order, strict=True)]
    hear(monkeypatch, Survey(said, None))
    assert json.loads(run("members", *NATS, "--format", "json").output) == {
        "version": 5,
        "places": 0,
        "servers": [
            {"name": "a", "member": True, "state": "leader"},
            {"name": "b", "member": True, "state": "follower"},
            {"name": "c", "member": False, "state": "not a member"},
            {"name": "d", "member": False, "state": "not a member"},
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


@pytest.mark.parametrize("words", [(), ("b",)])
def test_handover_waits_until_another_server_leads(client: Client, words: tuple[str, ...]) -> None:
    client.moves[ChangeKind.HAND_OVER] = [LEADER, {"name": "b", "state": "leader", "epoch": 4}]
    ended = run("handover", *words, *NATS)
    assert (ended.exit_code, ended.output) == (0, "b leads\n")
    assert {(each.name, each.by) for each in client.requests} == {("a", "".join(words))}


def test_handover_to_the_leader_changes_nothing(client: Client) -> None:
    assert run("handover", "a", *NATS).output == "a leads\n"
    assert not client.requests


def test_handover_says_why_no_server_can_take_over(client: Client) -> None:
    answer = {"refused": "b can take over at present (b: it is behind)"}

    class Sent(dict[str, Any]):
        def __getitem__(self, key: Any) -> Any:
            return [{**LEADER, "answer": {**answer, "id": client.requests[-1].ident}}]

    client.moves = Sent({ChangeKind.HAND_OVER: []})
    ended = run("handover", "b", *NATS)
    assert ended.exit_code == 1
    assert "it is behind" in ended.output


@pytest.mark.parametrize(("words", "said"), [((), "is in maintenance, and does not lead"), (("--end",), "may lead")])
def test_maintenance_waits_until_the_server_says_so(client: Client, words: tuple[str, ...], said: str) -> None:
    unfit = [{**LEADER, "unfit": MAINTENANCE}, {"name": "a", "unfit": MAINTENANCE}]
    client.moves = {ChangeKind.MAINTAIN: unfit, ChangeKind.RESUME: [*unfit, {"name": "a", "unfit": ""}]}
    ended = run("maintenance", "a", *words, *NATS)
    assert ended.exit_code == 0, ended.output
    assert said in ended.output


def test_without_an_answer_the_outcome_is_unknown(client: Client) -> None:
    client.deaf = 100
    ended = run("add", "d", *NATS, "--wait", "1s")
    assert ended.exit_code == 1
    assert "whether anything was changed is unknown" in ended.output
    assert len(client.requests) > 1
