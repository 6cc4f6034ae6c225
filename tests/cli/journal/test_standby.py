"""``fyrehose journal follow`` and ``promote`` as people call them: what they say, and their status."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.copies import STANDBY
from fyrehose.journal.files import lock
from fyrehose.offline.places import Directory
from fyrehose.offline.standby import Standby
from tests.cli.journal.test_backup import write

URL = "http://127.0.0.1:1"


def run(*words: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["journal", *map(str, words)], prog_name="fyrehose", input=answer)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory of a journal that requests to URL reach without a server process."""
    handler = signal.getsignal(signal.SIGTERM)
    write(tmp_path / "data")
    monkeypatch.setattr("fyrehose.offline.places.place", lambda url, token_file: Directory(tmp_path / "data"))
    monkeypatch.setattr("fyrehose.offline.places.Directory.__str__", lambda self: URL)
    yield tmp_path / "data"
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def rounds(data: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function to which a test passes what happens after each round of following; then Ctrl-C is pressed."""
    steps: list[Callable[[], object]] = []

    def sleep(self: Standby, every: float, say: Callable[[str], object]) -> None:
        for step in steps:
            step()
            self.copying.run_patiently(say)
            self.observe(self.lag)
        raise KeyboardInterrupt

    monkeypatch.setattr(Standby, "follow", sleep)
    return lambda *them: steps.extend(them)


def test_standby_follows_until_it_is_interrupted_and_resumes(
    data: Path, tmp_path: Path, rounds: Callable[..., None]
) -> None:
    standby = tmp_path / "standby"
    rounds(lambda: write(data, 5))
    result = run("follow", URL, standby)
    assert result.exit_code == 0
    assert [line.partition(" in ")[0] for line in result.output.splitlines()] == ["30 records", "stopped: 35 records"]
    assert run("follow", URL, standby, "--once").output.startswith("0 records")
    assert scan.read_mark(standby) == scan.read_mark(data)
    assert "OK: 35 records" in run("verify", standby).output
    assert run("dump", standby).output == run("dump", data).output


def test_standby_deletes_what_its_source_deletes_unless_it_keeps_it(data: Path, tmp_path: Path) -> None:
    whole = len(scan.segments(data))
    for name in ("standby", "kept"):
        run("follow", URL, tmp_path / name, "--once")
    for segment in scan.segments(data)[:2]:
        segment.path.unlink()
    (data / scan.MARK_NAME).unlink()
    write(data, 1)
    run("follow", URL, tmp_path / "standby", "--once", "--subscription", "standby")
    run("follow", URL, tmp_path / "kept", "--once", "--keep")
    assert len(scan.segments(tmp_path / "standby")) == len(scan.segments(data)) < whole
    assert len(scan.segments(tmp_path / "kept")) >= whole
    assert [each.name for each in subscriptions.registered(data)] == ["standby"]


def test_lag_is_exported(data: Path, tmp_path: Path, rounds: Callable[..., None]) -> None:
    metrics = tmp_path / "standby.prom"
    rounds(lambda: write(data, 5), lambda: data.rename(tmp_path / "away"))
    result = run("follow", URL, tmp_path / "standby", "--metrics", metrics)
    assert result.exit_code == 0, result.output
    assert result.output.count("trying again until that is over") == 1
    text = metrics.read_text()
    assert f"\nfyrehose_standby_position {float(scan.read_mark(tmp_path / 'standby'))}\n" in text
    assert "\nfyrehose_standby_source_reachable 0.0\n" in text
    assert "\nfyrehose_standby_lag_bytes 0.0\n" in text
    assert "\nfyrehose_standby_lag_seconds " in text


def test_source_that_is_away_at_the_start_is_waited_for(
    data: Path, tmp_path: Path, rounds: Callable[..., None]
) -> None:
    data.rename(tmp_path / "away")
    rounds(lambda: (tmp_path / "away").rename(data))
    result = run("follow", URL, tmp_path / "standby")
    assert result.exit_code == 0
    assert [line.partition(";")[2].partition(" up")[0] for line in result.output.splitlines()] == [
        " trying again until that is over",
        f" {tmp_path / 'standby'} is complete",
        " the backup is complete",
        f" {tmp_path / 'standby'} is complete",
    ]


def test_error_is_one_line_and_an_exit_status(data: Path, tmp_path: Path) -> None:
    standby, home = tmp_path / "standby", tmp_path / "home"
    home.mkdir()
    home.joinpath("letter").write_text("dear")
    assert run("follow", URL, standby, "--once").exit_code == 0
    for words, status, said in (
        (("follow", "data", standby), 2, "invalid URL 'data': expected http://HOST:PORT"),
        (("follow", URL, standby, "--every", "0"), 2, "invalid --every: expected more than 0"),
        (("follow", URL, standby, "--subscription", "a/b"), 2, "invalid name of a subscription"),
        (("follow", URL, standby, "--metrics", "x.txt"), 2, "expected FILE.prom or HOST:PORT"),
        (("follow", URL, home), 2, "has files and is no backup"),
        (("promote", data), 2, "is no standby"),
    ):
        result = run(*words)
        assert (result.exit_code, said in result.output) == (status, True), result.output
        assert result.output.count("\n") == 1
    held = lock(standby)
    try:
        for words in (("follow", URL, standby), ("promote", standby, "--yes")):
            result = run(*words)
            assert (result.exit_code, "is in use by another process" in result.output) == (5, True), result.output
    finally:
        os.close(held)


def test_promoted_standby_is_a_journal_in_which_a_server_starts(data: Path, tmp_path: Path) -> None:
    standby = tmp_path / "standby"
    run("follow", URL, standby, "--once")
    result = run("promote", standby)
    assert (result.exit_code, "is a journal of its own now: it has 1 stream up to position" in result.output) == (
        0,
        True,
    )
    write(standby, 5)
    assert "OK: 35 records" in run("verify", standby).output
    again = run("promote", standby)
    assert (again.exit_code, "was promoted already" in again.output) == (2, True)


def test_standby_of_a_server_that_answers_is_promoted_only_if_that_is_confirmed(data: Path, tmp_path: Path) -> None:
    standby = tmp_path / "standby"
    run("follow", URL, standby, "--once")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (standby / STANDBY).write_text(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
        for answer in ("", "n\n"):
            result = run("promote", standby, answer=answer)
            assert (result.exit_code, "still answers" in result.output) == (1, True)
            assert (standby / STANDBY).exists()
        assert run("promote", standby, answer="y\n").exit_code == 0
        assert not (standby / STANDBY).exists()
