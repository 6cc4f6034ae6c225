"""``fyrehose journal`` as people call it: what it writes, its status, and what it leaves alone."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.journal import scan
from tests.doubles.opened_journal import opened


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), prog_name="fyrehose")


PAYLOADS = [b"plain", "\N{SNOWMAN}".encode(), b"\x1b[31mred\n", b"\xff\xfe", b"long " * 100, b""]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the directory of a journal with several segments and two streams, one with a malicious name."""
    bench = opened(tmp_path / "data", segment_size=4096, now=lambda: 1_700_000_000_000_000)
    for _ in range(20):
        bench.append(*PAYLOADS, stream="log", source="figg", producer="127.0.0.1:9", topic="t")
    bench.append(b"x", stream="evil\x1b[2J\n", source="backbone")
    bench.close()
    return bench.directory


def damage(data: Path) -> Path:
    path = scan.segments(data)[1].path
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("words", [(), ("verify",), ("dump",), ("stats",)], ids=lambda words: "-".join(words) or "all")
def test_help_fits_a_screen(words: tuple[str, ...]) -> None:
    result = run("journal", *words, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) <= 36
    assert max(map(len, result.output.splitlines())) <= 80


class TestVerify:
    def test_intact_journal_is_verified_with_status_0(self, data: Path) -> None:
        before = {path.name: path.read_bytes() for path in data.iterdir()}
        result = run("journal", "verify", data)
        assert result.exit_code == 0
        assert "121 records of 2 streams" in result.stdout
        assert result.stdout.splitlines()[-1].startswith("OK: ")
        assert result.stderr == ""
        assert {path.name: path.read_bytes() for path in data.iterdir()} == before

    def test_damage_is_reported_with_its_position_and_status_3(self, data: Path) -> None:
        path = damage(data)
        result = run("journal", "verify", data)
        assert result.exit_code == 3
        assert f"damaged: {path.name} at byte" in result.stdout
        assert "DAMAGED" in result.stdout
        assert len(result.stderr.splitlines()) == 1

    def test_gaps_and_notes_are_listed(self, data: Path) -> None:
        next(iter(data.glob("*.index"))).unlink()
        result = run("journal", "verify", data)
        assert result.exit_code == 0
        assert "will be rebuilt" in result.stdout

    @pytest.mark.parametrize("command", ["verify", "dump", "stats"])
    def test_directory_without_journal_is_refused(self, tmp_path: Path, command: str) -> None:
        result = run("journal", command, tmp_path)
        assert result.exit_code == 1
        assert "is no journal" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert run("journal", command, tmp_path / "nowhere").exit_code == 2


class TestDump:
    def test_text_is_safe_for_a_terminal(self, data: Path) -> None:
        result = run("journal", "dump", data)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        lines = result.stdout.splitlines()
        assert len(lines) == 121
        assert lines[0] == "log 1 2023-11-14T22:13:20.000000+00:00 [figg 127.0.0.1:9 t] plain"
        assert "\\x1b[31mred\\n" in lines[2]
        assert lines[4].endswith("... (500 bytes)")

    def test_json_has_every_byte(self, data: Path) -> None:
        result = run("journal", "dump", data, "--stream", "log", "--format", "json")
        objects = list(map(json.loads, result.stdout.splitlines()))
        payloads = [o["payload"].encode() if "payload" in o else b64decode(o["payload_base64"]) for o in objects]
        assert payloads == PAYLOADS * 20
        assert [o["seq"] for o in objects] == list(range(1, 121))

    def test_part_of_a_stream_is_shown(self, data: Path) -> None:
        result = run("journal", "dump", data, "--stream", "log", "--from", "7", "--limit", "3", "--format", "json")
        assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == [7, 8, 9]
        assert run("journal", "dump", data, "--from", "7").exit_code == 2

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_runs_and_batches_can_be_dumped(self, data: Path, form: str) -> None:
        result = run("journal", "dump", data, "--what", "runs", "--format", form)
        assert len(result.stdout.splitlines()) == 21
        assert "\x1b" not in result.stdout
        result = run("journal", "dump", data, "--what", "batches", "--format", form)
        assert "ends" in result.stdout.splitlines()[0]
        assert "closed" in result.stdout.splitlines()[-1]
        limited = run("journal", "dump", data, "--what", "batches", "--format", form, "--limit", "2")
        assert limited.stdout.splitlines() == result.stdout.splitlines()[:2]
        assert run("journal", "dump", data, "--what", "batches", "--stream", "log").exit_code == 2

    def test_damage_ends_the_dump_with_an_error(self, data: Path) -> None:
        damage(data)
        result = run("journal", "dump", data)
        assert result.exit_code == 3
        assert 0 < len(result.stdout.splitlines()) < 121
        assert "is damaged at byte" in result.stderr
        assert len(result.stderr.splitlines()) == 1


class TestStats:
    def test_times_are_left_out_on_a_narrow_terminal(self, data: Path) -> None:
        said = CliRunner().invoke(main, ["journal", "stats", str(data)], env={"COLUMNS": "60"}).output
        assert said.splitlines()[0].split() == ["stream", "records", "first", "last", "missing", "size"]
        assert "\u2026" not in said

    def test_text_lists_streams_and_totals(self, data: Path) -> None:
        result = run("journal", "stats", data)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert "121 records, 2 streams" in result.stdout
        assert "closed cleanly" in result.stdout

    def test_json_has_the_counts_of_each_stream(self, data: Path) -> None:
        stats = json.loads(run("journal", "stats", data, "--format", "json").stdout)
        log = stats["streams"]["log"]
        assert (log["records"], log["first"], log["last"], log["missing"]) == (120, 1, 120, 0)
        assert log["size"] == 20 * sum(map(len, PAYLOADS))
        assert stats["segments"] == len(scan.segments(data))
        assert stats["closed"] is True

    def test_damage_ends_with_status_3_after_the_counts_are_printed(self, data: Path) -> None:
        damage(data)
        result = run("journal", "stats", data)
        assert result.exit_code == 3
        assert "records" in result.stdout
