"""``fyrehose subscriptions``: what it asks the server, and how it shows the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.command import main
from tests.doubles.answering import Answering, own

BILLING = {
    "name": "billing",
    "kind": "stream",
    "stream": "orders",
    "position": 5,
    "lag": 1234,
    "lag_seconds": 61.5,
    "generation": 1,
    "consumer": True,
    "active": 1_700_000_000_000_000,
}
DONE = BILLING | {"name": "done", "stream": "a\x1b", "lag": 0, "lag_seconds": 0.0, "consumer": False}
LOGS = {
    "name": "logs",
    "kind": "pattern",
    "stream": "logs.*",
    "streams": 12,
    "lag": 7,
    "lag_seconds": 3.0,
    "generation": 1,
    "consumer": False,
    "active": 1_700_000_000_000_000,
}
WORK = {
    "name": "work",
    "kind": "shared",
    "stream": "jobs",
    "lag": 40,
    "oldest_unsettled_seconds": 9.5,
    "settled_total": 2000,
    "in_flight": 3,
    "delayed": 0,
    "dead_total": 2,
    "paused": True,
    "window_full": False,
    "active": 1_700_000_000_000_000,
}
ARCHIVE = {"name": "archive", "kind": "files", "behind_bytes": 4096, "active": 1_700_000_000_000_000}


@attrs.define
class Server:
    """Answers every request with the next of *answers*, or else with *answer*, which may be a refusal.

    :ivar asked: method, path and body of the requests
    """

    answer: Any = None
    status: int = 200
    answers: list[Any] = attrs.field(factory=list)
    there: Answering = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.there = Answering(self._answers())

    def _answers(self) -> Iterator[bytes]:
        while True:
            found = self.answers.pop(0) if self.answers else self.answer
            if isinstance(found, bytes):  # the number of a time
                yield b"HTTP/1.1 200 OK\r\nFyrehose-From: %b\r\nContent-Length: 0\r\n\r\n" % found
            else:
                yield b"HTTP/1.1 204 No Content\r\n\r\n" if found is None else own(found, self.status)

    @property
    def asked(self) -> list[tuple[str, str, bytes]]:
        return [(method, target, body) for method, target, _, body in self.there.requests]

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["subscriptions", *words, "--url", self.there.url], env={"COLUMNS": "120"})


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with found.there:
        yield found


def test_subscriptions_are_listed_by_default_those_furthest_behind_first(server: Server) -> None:
    server.answer = {"subscriptions": [ARCHIVE, DONE, BILLING]}
    result = server.run()
    assert result.exit_code == 0
    head, *rows = [line.split() for line in result.output.splitlines()]
    assert head == ["subscription", "stream", "position", "behind", "oldest", "consumer", "last", "used"]
    assert rows[0] == ["billing", "orders", "5", "1,234", "62", "s", "connected", "2023-11-14T22:13:20"]
    assert rows[1] == ["done", "a\\x1b", "5", "0", "-", "2023-11-14T22:13:20"]
    assert rows[2] == ["archive", "(the", "journal's", "files)", "4,096", "B", "2023-11-14T22:13:20"]
    assert server.asked == [("GET", "/subscriptions", b"")]


def test_a_subscription_of_a_pattern_is_one_row_with_the_number_of_its_streams(server: Server) -> None:
    server.answer = {"subscriptions": [ARCHIVE, LOGS]}
    rows = [line.split() for line in server.run().output.splitlines()[1:]]
    assert rows[0] == ["logs", "logs.*", "12", "streams", "7", "3", "s", "2023-11-14T22:13:20"]
    assert rows[1][0] == "archive"


def test_shared_subscription_shows_the_leased_and_failed_records(server: Server) -> None:
    server.answer = {"subscriptions": [WORK]}
    row = server.run().output.splitlines()[1]
    assert all(text in row for text in ("work", "jobs", "2,000 settled", "40", "10 s", "paused, 3 leased, 2 dead"))


def test_subscriptions_are_listed_as_json(server: Server) -> None:
    server.answer = {"subscriptions": [BILLING, ARCHIVE]}
    assert [json.loads(line) for line in server.run("--format", "json").output.splitlines()] == [BILLING, ARCHIVE]


def test_empty_list_of_subscriptions_is_reported(server: Server) -> None:
    server.answer = {"subscriptions": []}
    assert "no named subscriptions" in server.run().output


def test_one_subscription_is_shown(server: Server) -> None:
    server.answer = BILLING
    assert json.loads(server.run("show", "billing").output) == BILLING
    assert server.asked[0][1] == "/subscriptions/billing"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("billing --since start", {"seq": 0}),
        ("billing --since 7", {"seq": 6}),
        ("billing --since latest", {"seq": "latest"}),
        ("billing --since -1h", {"since": "-1h"}),  # the server finds the number of a time
        ("logs --since 7 --stream logs.a", {"positions": {"logs.a": 6}}),
        ("logs --since -1h --stream logs.a", {"positions": {"logs.a": 7}}),
    ],
)
def test_rewinding_names_the_first_record(server: Server, words: str, asked: dict[str, Any]) -> None:
    of_stream = "--stream" in words
    server.answer = LOGS if of_stream else BILLING
    server.answers = [b"8"] if "-1h --stream" in words else []
    continues = "logs continues 7 records behind in 12 streams" if of_stream else "billing continues behind record 5"
    assert server.run("rewind", *words.split()).output == f"subscription {continues}\n"
    *before, (method, url, body) = server.asked
    assert (method, url, json.loads(body)) == ("POST", f"/subscriptions/{words.split()[0]}/rewind", asked)
    number = [("GET", "/streams/logs.a?from=-1h&limit=0", b"")]
    assert before == (number if "-1h --stream" in words else [])


def test_one_stream_of_a_pattern_is_rewound_to_a_number_only(server: Server) -> None:
    said = server.run("rewind", "logs", "--stream", "logs.a", "--since", "latest").output
    assert "needs --since with a number" in said
    assert not server.asked


def test_subscriptions_are_deleted(server: Server) -> None:
    result = server.run("delete", "a", "b c")
    assert result.output == "subscription a deleted\nsubscription b c deleted\n"
    assert [asked[:2] for asked in server.asked] == [
        ("DELETE", "/subscriptions/a"),
        ("DELETE", "/subscriptions/b%20c"),
    ]


def test_a_refusal_is_an_error(server: Server) -> None:
    server.status, server.answer = 404, {"error": "there is no subscription 'a'"}
    result = server.run("delete", "a")
    assert result.exit_code == 1
    assert "there is no subscription 'a'" in result.output


def test_a_shared_subscription_is_created_with_the_options_that_are_given(server: Server) -> None:
    server.answer = WORK
    result = server.run("create", "work", "--stream", "jobs", "--lease", "5m", "--dead", "jobs.dead", "--since", "7")
    assert result.output == "shared subscription work of jobs is there\n"
    ((method, url, body),) = server.asked
    assert (method, url) == ("PUT", "/subscriptions/work")
    fields = {"stream": "jobs", "lease": 300, "dead": "jobs.dead", "from": 7, "shared": True}
    assert json.loads(body) == fields
    server.run("create", "work", "--stream", "logs.*")
    assert json.loads(server.asked[-1][2]) == {"match": "logs.*", "from": 1, "shared": True}


def test_a_shared_subscription_is_paused_and_resumed(server: Server) -> None:
    server.answer = WORK
    assert server.run("pause", "work").output == "subscription work is paused\n"
    assert server.run("pause", "work", "--resume").output == "subscription work leases records again\n"
    assert [json.loads(body) for _, _, body in server.asked] == [{"paused": True}, {"paused": False}]


def test_a_redrive_asks_until_nothing_is_left(server: Server) -> None:
    server.answers = [{"redriven": 1000, "left": 200}, {"redriven": 200, "left": 0}]
    assert server.run("redrive", "work").output == "1,200 dead letters of subscription work published again\n"
    assert len(server.asked) == 2
