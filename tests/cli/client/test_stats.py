"""A server as tables: what is shown, and what a terminal is not made to obey."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import groupby, repeat, zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fyrehose.cli.client import stats
from fyrehose.cli.client.streams import PAGE
from fyrehose.cli.command import main
from tests.doubles.answering import Answering, own, proxy


def status(**changes: Any) -> dict[str, Any]:
    stream = {"name": "orders\x1b[2J", "first": 1, "last": 123456, "rate": 7.25, "subscribers": 2}
    stream |= {"bytes_rate": 2_048.0, "bytes": 1 << 20, "oldest_age": 90_061.0, "newest_age": 0.0}
    subscriber = {
        "protocol": "figg",
        "peer": "10.0.0.1:5",
        "stream": "orders",
        "position": 4,
        "lag": 1234,
        "delivered": 4,
        "paused": True,
    }
    protocol = {
        "name": "lumberjack",
        "connections": 3,
        "published_rate": 1500.0,
        "published_messages": 10,
        "published_bytes_rate": 2e6,
        "delivered_rate": None,
        "delivered_messages": 0,
        "publishers": 2,
        "subscribers": 0,
        "acknowledge_p99": 0.025,
        "refused": 5,
    }
    made = {
        "host": "node-1",
        "version": "1.2.3",
        "uptime": 90_061.0,
        "memory": {"resident": 50_000_000},
        "reactor": {"lag": 0.002},
        "journal": {
            "state": "writable",
            "durability": "batch",
            "commit_p50": 0.00025,
            "commit_p99": 2.5,
            "size": 1 << 30,
            "free": 1 << 40,
            "full_in": 90_061.0,
        },
        "protocols": [protocol],
        "listeners": [
            {
                "name": "figg/a",
                "protocol": "figg",
                "endpoint": "tcp:8119",
                "encryption": "",
                "access": "this machine",
                "connections": 4,
            }
        ],
        "streams": {"total": 9, "matching": 3, "listed": [stream]},
        "subscribers": {"total": 1, "lag": 1234, "listed": [subscriber]},
        "writers": {
            "total": 1,
            "listed": [
                {
                    "name": "web\x1b-1",
                    "agent": "filebeat 8.19.0",
                    "address": "10.0.0.2:5",
                    "connections": 2,
                    "rate": 7.5,
                    "events": 1_234,
                    "acknowledged_ago": 65.0,
                    "refused": 3,
                    "missed": 4,
                }
            ],
        },
        "refusals": [{"protocol": "lumberjack", "cause": "too-large", "count": 5}],
        "events": [{"protocol": "lumberjack", "event": "resent-dropped", "count": 300}],
    }
    return {**made, **changes}


def run(*words: str) -> str:
    result = CliRunner().invoke(main, words, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def server() -> Iterator[Answering]:
    """Return a server that answers every request with the status."""
    with Answering(repeat(own(status()))) as answering:
        yield answering


def shown(found: dict[str, Any], *words: str) -> str:
    """Return what a command shows of a server whose status is *found*."""
    with Answering(repeat(own(found))) as answering:
        return run(*words, "--url", answering.url)


def targets(server: Answering) -> list[str]:
    """Return the targets of the requests that *server* has got."""
    return [target for _, target, _, _ in server.requests]


def test_writers_of_lumberjack_are_listed(server: Answering) -> None:
    lines = [" ".join(line.split()) for line in run("stats", "--url", server.url).splitlines()]
    assert "web\\x1b-1 filebeat 8.19.0 2 7.5 1,234 65 s 3 4" in lines
    before = status()
    del before["writers"]  # of a server of an earlier version
    assert "filebeat" not in shown(before, "stats")


def test_streams_are_listed_as_a_table(server: Answering) -> None:
    said = run("streams", "ord", "--limit", "7", "--url", server.url)
    assert targets(server) == ["/api/status?match=ord&limit=7"]
    _, head, line, more = said.splitlines()
    assert head.split() == ["stream", "first", "last", "/s", "size/s", "size", "oldest", "newest", "subscribers"]
    assert " ".join(line.split()) == "orders\\x1b[2J 1 123456 7.2 2.0 KiB 1.0 MiB 1 d 1 h 0 s 2"
    assert more == "1 of 3 streams; raise --limit, or pass a part of the name"


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (99.9, "99.9 s"),
        (130.0, "2 min"),
        (3600.0, "1 h"),
        (3700.0, "1 h 1 min"),
        (86_400.0, "1 d"),
        (93_599.0, "1 d 1 h"),
    ],
)
def test_ages_leave_out_a_part_that_is_zero(age: float, text: str) -> None:
    made = status()
    made["streams"]["listed"][0]["oldest_age"] = age
    assert f" MiB {text} 0 s 2" in " ".join(shown(made, "streams").splitlines()[2].split())


def test_more_streams_than_one_answer_holds_are_fetched_page_by_page() -> None:
    row = status()["streams"]["listed"][0]
    there = [{**row, "name": f"{n:04}", "rate": None if n % 2 else float(n)} for n in range(2 * PAGE + 1)]
    first = status()
    first["streams"] |= {"matching": len(there), "listed": [{**row, "rate": 0.0}]}
    pages = [{"listed": there[at : at + PAGE]} for at in range(0, len(there), PAGE)]
    with Answering([own(answer) for answer in (first, *pages)]) as server:
        lines = run(
            "streams", "x", "--limit", str(len(there) - 3), "--format", "json", "--url", server.url
        ).splitlines()
    busy = [f"{n:04}" for n in range(2 * PAGE, 0, -2)]
    quiet = sorted({each["name"] for each in there} - set(busy))
    assert [json.loads(line)["name"] for line in lines] == [*busy, *quiet][:-3]
    asked = [f"/api/streams?match=x&page={page}&limit={PAGE}" for page in range(3)]
    assert targets(server) == [f"/api/status?match=x&limit={PAGE}", *asked]


@pytest.mark.parametrize("form", ["text", "json"])
def test_hidden_stream_names_are_an_error(form: str) -> None:
    hidden = {**status(), "streams": {"total": 3, "matching": 3, "listed": [], "hidden": True}}
    with Answering([own(hidden)]) as server:
        result = CliRunner().invoke(main, ["streams", "--format", form, "--url", server.url])
    assert result.exit_code == 1
    assert "hides the names of its 3 streams from this client; set admin.token-file on the server" in result.output


def test_streams_are_printed_as_json() -> None:
    assert json.loads(shown(status(), "streams", "--format", "json")) == status()["streams"]["listed"][0]


def test_request_is_repeated_until_rates_are_known() -> None:
    unknown = status()
    unknown["streams"]["listed"][0] = {**unknown["streams"]["listed"][0], "rate": None}
    with Answering([own(unknown), own(status())]) as server:
        assert "7.2" in run("streams", "--url", server.url)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("subscriber", "state"),
    [
        ({"paused": False, "closes_in": None}, ""),
        ({"paused": True, "closes_in": None}, "waits for the client"),
        ({"paused": True}, "waits for the client"),
        ({"paused": True, "closes_in": 12.3}, "does not read, disconnected in 12 s"),
    ],
)
def test_state_of_a_subscriber_says_when_it_is_disconnected(subscriber: dict[str, Any], state: str) -> None:
    assert stats._state(subscriber) == state


def test_stats_shows_the_whole_status() -> None:
    said = " ".join(shown(status(), "stats").split())
    for part in (
        "fyrehose 1.2.3 on node-1, up 1 d 1 h, journal writable, durability batch",
        "commits: half within 0.25 ms, 99% within 2.5 s",
        "journal 1.0 GiB, free disk 1.0 TiB, full in 1 d 1 h",
        "memory 47.7 MiB; longest pause of the server 2 ms",
        "streams: 9; subscribers: 1, at most 1234 behind",
        "lumberjack 3 2 0 1,500 1.9 MiB 10 25 ms - 5",
        "figg/a tcp:8119 none this machine 4",
        "lumberjack too-large 5",
        "lumberjack resent-dropped 300",
        "figg 10.0.0.1:5 orders 4 1,234 waits for the client",
    ):
        assert part in said
    assert json.loads(shown(status(), "stats", "--format", "json")) == status()


@pytest.mark.parametrize(
    ("columns", "numbers"), [("80", "3 2 0 1,500 25 ms -"), ("110", "3 2 0 1,500 1.9 MiB 10 25 ms - 0 5")]
)
def test_protocols_have_the_columns_that_fit(server: Answering, columns: str, numbers: str) -> None:
    result = CliRunner().invoke(main, ["stats", "--url", server.url], env={"COLUMNS": columns})
    lines = result.output.splitlines()
    [line] = [" ".join(line.split()) for line in lines if line.startswith("lumberjack  ") and "too-large" not in line]
    assert line == f"lumberjack {numbers}"


def test_failed_journal_without_durability_is_shown() -> None:
    journal = {"state": "failed", "commit_p50": None, "commit_p99": None}
    assert "journal failed, durability unknown" in shown(status(journal=journal), "stats")


def test_stats_shows_the_role_in_a_cluster() -> None:
    journal = status()["journal"] | {"cluster": {"summary": "b follows a\x1b[2J, epoch 7"}}
    said = shown(status(journal=journal), "stats")
    assert "cluster: b follows a" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("full_in", "said"), [(365 * 86_400.0, "full in 365 d\n"), (148_821 * 86_400.0, "full in more than a year\n")]
)
def test_forecast_of_years_until_the_disk_is_full_is_not_shown_in_days(full_in: float, said: str) -> None:
    distant = status()
    distant["journal"]["full_in"] = full_in
    assert said in shown(distant, "stats")


def test_top_stops_after_count_updates(server: Answering) -> None:
    said = run("top", "--count", "3", "--interval", "0.5", "--url", server.url)
    assert len(server.requests) == 3
    assert "orders\\x1b[2J" in said
    assert "waits for the client" in said
    lines = shown(status(), "top", "--count", "2", "--interval", "0.5", "--format", "json").splitlines()
    assert [json.loads(line) for line in lines] == [status(), status()]


def test_top_fits_80_columns() -> None:
    full = status()
    full["journal"] |= {
        "size": 900 << 40,
        "free": 900 << 40,
        "full_in": 300 * 86_400.0,
        "commit_p50": 12.34,
        "commit_p99": 12.34,
    }
    full["subscribers"] |= {"total": 300_000, "lag": 1 << 47}
    with Answering([own(full)]) as server:
        result = CliRunner().invoke(main, ["top", "--count", "1", "--url", server.url], env={"COLUMNS": "80"})
    head = result.output.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in head] == ["fyrehose", "commits:", "journal", "memory", "streams:"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_top_ends_by_ctrl_c(server: Answering, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "time", SimpleNamespace(sleep=interrupted))
    assert "orders" in run("top", "--format", form, "--url", server.url)


@pytest.mark.parametrize("command", ["streams", "stats", "top"])
def test_unreachable_server_is_one_line(command: str) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, [command, "--url", url])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("fyrehose: ")
    assert url in line


def test_top_waits_for_a_server_that_has_answered_and_says_once_in_each_outage_why() -> None:
    """The answers of a proxy, and a lost connection, are times in which the server restarts; a refusal is final."""
    kinds = {
        "up": (own(status()), None),
        "behind a proxy": (proxy(502, Retry_After="0"), "a proxy sent HTTP status 502"),
        "closed": (b"", "closed the connection before the end of its answer"),
        "cut": (own(status())[:-9], "closed the connection before the end of its answer"),
        "other": (proxy(404), "(it answered with HTTP status 404)"),
        "starting": (own({"error": "starting"}, 503), "refused the request: starting"),
    }
    order = ["up", "behind a proxy", "closed", "cut", "other", "starting", "up", "starting", "up"]
    answers = [kinds[kind][0] for kind in order]
    with Answering([*answers, own({"error": "the token has ended"}, 403)]) as server:
        words = ["top", "--format", "json", "--interval", "0.5", "--url", server.url]
        result = CliRunner().invoke(main, words)
    assert len(server.requests) == len(order) + 1
    assert [json.loads(line)["version"] for line in result.stdout.splitlines()] == [status()["version"]] * 3
    *waiting, last = result.stderr.splitlines()
    expected = [reason for reason, _ in groupby(kinds[kind][1] for kind in order) if reason]
    for said, reason in zip_longest(waiting, expected, fillvalue=""):
        assert reason in said, f"{said!r} in place of {reason!r}"
        assert said.endswith("; retrying"), said
    assert last.endswith("refused the request: the token has ended")
    assert result.exit_code == 1


def test_top_fails_at_once_if_the_server_has_never_answered() -> None:
    with Answering([proxy(502)]) as server:
        result = CliRunner().invoke(main, ["top", "--url", server.url])
    assert (result.exit_code, len(server.requests)) == (1, 1)
