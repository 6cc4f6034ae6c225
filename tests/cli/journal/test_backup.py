"""``fyrehose journal backup`` and ``restore`` as people call them: what they say, and their status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.journal import scan, subscriptions
from fyrehose.journal.files import lock
from tests.doubles.opened_journal import opened


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["journal", *map(str, words)], prog_name="fyrehose")


def write(directory: Path, count: int = 30) -> None:
    """Append *count* messages to the journal in the directory, and close it."""
    bench = opened(directory, segment_size=4096)
    first = bench.next.get("log", 1)
    for number in range(first, first + count):
        bench.append(b"message %d " % number + b"." * 300, stream="log", source="figg")
    bench.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "data")
    return tmp_path / "data"


def test_journal_is_backed_up_and_restored(data: Path, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    result = run("backup", data, backup)
    assert result.exit_code == 0
    assert result.output.startswith("30 records in ")
    assert result.output.endswith(f"{backup} is complete up to position {scan.read_mark(data)}\n")
    write(data, 5)
    assert run("backup", data, backup).output.startswith("5 records in ")
    assert run("backup", data, backup).output.startswith("0 records in 0 batches (0 bytes) copied and verified; ")
    assert "OK: 35 records" in run("verify", backup).output
    result = run("restore", backup, restored)
    assert (result.exit_code, result.output.partition(" in ")[0]) == (0, "35 records")
    assert run("dump", restored).output == run("dump", data).output


def test_error_is_one_line_and_an_exit_status(data: Path, tmp_path: Path) -> None:
    backup, home = tmp_path / "backup", tmp_path / "home"
    home.mkdir()
    home.joinpath("letter").write_text("dear")
    held = lock(data)
    try:
        for words, status, said in (
            (("backup", tmp_path / "typo", backup), 1, "there is no such directory"),
            (("backup", data, data), 2, "cannot be a copy of itself"),
            (("backup", data, home), 2, "has files and is no backup"),
            (("backup", data, backup, "--subscription", "a/b"), 2, "invalid name of a subscription"),
            (("backup", data, backup, "--every", "0"), 2, "invalid --every: expected more than 0"),
            (("backup", "s3://bucket", backup), 2, "expected a directory, or http://HOST:PORT"),
            (("backup", data, backup, "--token-file", "none"), 0, ""),
            (("backup", backup, data), 5, "is in use by another process"),
            (("restore", backup, data), 2, "is not empty; name an empty or a new directory"),
            (("restore", tmp_path / "typo", home / "x"), 1, "there is no such directory"),
        ):
            result = run(*words)
            assert (result.exit_code, said in result.output) == (status, True), result.output
            assert result.output.count("\n") == 1
    finally:
        os.close(held)


def test_damaged_journal_ends_with_status_3(data: Path, tmp_path: Path) -> None:
    path = scan.segments(data)[1].path
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    result = run("backup", data, tmp_path / "backup")
    assert result.exit_code == 3
    assert f"{path} is damaged at byte" in result.output


def test_unknown_end_has_a_status_of_its_own_until_it_is_accepted(data: Path, tmp_path: Path) -> None:
    copy, restored = tmp_path / "copy", tmp_path / "restored"
    shutil.copytree(data, copy)
    (copy / "MARK").unlink()
    result = run("verify", copy)
    assert (result.exit_code, "END UNKNOWN: 30 records" in result.output) == (7, True)
    for words in (("restore", copy, restored), ("backup", copy, restored)):
        result = run(*words)
        assert (result.exit_code, "add --accept-unknown-end" in result.output) == (7, True)
    assert run("restore", copy, restored, "--accept-unknown-end").exit_code == 0
    assert run("verify", restored).exit_code == 0


def test_copy_of_a_backup_that_lacks_a_segment_ends_with_status_3(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert run("backup", data, tmp_path / "backup").exit_code == 0
    shutil.copytree(tmp_path / "backup", copy)
    assert run("verify", copy).exit_code == 0
    last = scan.segments(copy)[-1].path
    last.unlink()
    for words in (("verify", copy), ("restore", copy, tmp_path / "restored")):
        result = run(*words)
        assert (result.exit_code, last.name in result.output) == (3, True)


def test_backup_registers_a_named_subscription(data: Path, tmp_path: Path) -> None:
    assert run("backup", data, tmp_path / "backup", "--subscription", "nightly").exit_code == 0
    assert [(each.name, each.position) for each in subscriptions.registered(data)] == [
        ("nightly", scan.read_mark(data))
    ]
    assert "nightly" in run("subscriptions", data).output
    assert run("subscriptions", data, "--delete", "nightly").output == "subscription nightly deleted\n"
    again = run("subscriptions", data, "--delete", "nightly")
    assert (again.exit_code, "fyrehose subscriptions delete" in again.output) == (1, True)


def test_mirror_reports_deleted_segments(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    run("backup", data, backup)
    scan.segments(data)[0].path.unlink()
    result = run("backup", "--mirror", data, backup)
    assert ", old segments deleted: 1; " in result.output


@pytest.mark.live
@pytest.mark.slow
def test_journal_is_backed_up_over_http_with_a_token(data: Path, tmp_path: Path, serve: Callable[..., str]) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    url = serve(data, "--token-file", str(token))
    result = run("backup", url, tmp_path / "backup")
    assert (result.exit_code, "requires a token" in result.output) == (1, True)
    assert not (tmp_path / "backup").exists()
    result = run("backup", url, tmp_path / "backup", "--token-file", token, "--subscription", "far")
    assert (result.exit_code, result.output.partition(" in ")[0]) == (0, "30 records")
    assert run("dump", tmp_path / "backup").output == run("dump", data).output
    assert [each.name for each in subscriptions.registered(data)] == ["far"]
    served = serve(tmp_path / "backup", "--token-file", str(token))
    result = run("restore", served, tmp_path / "restored", "--token-file", token)
    assert (result.exit_code, result.output.partition(" in ")[0]) == (0, "30 records")


def test_backup_does_not_import_twisted() -> None:
    code = "import sys; from fyrehose.offline import backup; print('twisted' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
