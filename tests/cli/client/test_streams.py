"""``fyrehose streams``: what is listed by default, and what retired."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli.command import main
from tests.doubles.answering import Answering, own, proxy


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["streams", *words], env={"COLUMNS": "100"})


def retire(server: Answering, *words: str) -> Result:
    return run("retire", "--url", server.url, *words)


RETIRED = b"HTTP/1.1 204 No Content\r\n\r\n"


def test_streams_are_retired_one_after_the_other(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with Answering([RETIRED] * 2) as server:
        result = retire(server, "--token-file", str(token), "a/b ä", "c\x1b")
    assert result.exit_code == 0
    assert result.output == "stream a/b ä retired\nstream c\\x1b retired\n"
    assert [(method, target) for method, target, _, _ in server.requests] == [
        ("DELETE", "/streams/a%2Fb%20%C3%A4"),
        ("DELETE", "/streams/c%1B"),
    ]
    assert {headers["authorization"] for _, _, headers, _ in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            own({"error": "there is no stream 'b'"}, 404),
            "the server at URL refused the request: there is no stream 'b'",
        ),
        (own({"error": "10.0.0.1 may not"}, 403), "the server at URL refused the request: 10.0.0.1 may not"),
        (own({"error": "x"}, 401), "the server at URL requires a token; pass --token-file FILE"),
        (proxy(404), "URL is not a Fyrehose http listener; check --url (it answered with HTTP status 404)"),
    ],
)
def test_retire_stops_at_the_first_refusal(refusal: bytes, said: str) -> None:
    with Answering([RETIRED, refusal, RETIRED]) as server:
        result = retire(server, "a", "b", "c")
    assert result.exit_code == 1
    assert result.stdout == "stream a retired\n"
    assert result.stderr == f"fyrehose: {said.replace('URL', server.url)}\n"
    assert len(server.requests) == 2


def test_unreachable_server_and_invalid_url_are_reported() -> None:
    result = run("retire", "--url", "http://127.0.0.1:1", "a")
    assert result.exit_code == 1
    assert "or with --listen http=tcp:8117:interface=127.0.0.1" in result.stderr
    assert "fyrehose[admin]" not in result.stderr
    wrong = run("retire", "--url", "x", "a")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "fyrehose: invalid --url 'x': expected a URL with a host and a port, such as http://127.0.0.1:8117\n",
    )


def test_retire_requires_a_name() -> None:
    with Answering([]) as server:
        assert retire(server).exit_code == 2
    assert server.requests == []


LISTED = own({"journal": {}, "streams": {"total": 0, "matching": 0, "listed": []}})


def matches(server: Answering) -> list[str]:
    """Return the text that the names of the streams in each answer were to contain."""
    return [parse_qs(urlsplit(target).query).get("match", [""])[0] for _, target, _, _ in server.requests]


@pytest.mark.parametrize("words", [[], ["part"], ["--format", "json"], ["--format", "json", "part"], ["list", "part"]])
def test_list_is_the_default_command(words: list[str]) -> None:
    with Answering([LISTED]) as server:
        assert run(*words, "--url", server.url).exit_code == 0
    assert matches(server) == ["part" if "part" in words else ""]


def test_list_finds_names_that_contain_a_command() -> None:
    with Answering([LISTED]) as server:
        assert run("list", "--url", server.url, "retire").exit_code == 0
    assert matches(server) == ["retire"]
    assert "retire" in run("--help").output
