"""``fyrehose journal export``: a file that holds what was asked for, or no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from fyrehose.cli import main
from fyrehose.cli.journal import export as journal_export
from fyrehose.errors import ConfigError, JournalGap
from fyrehose.journal import scan
from fyrehose.journal.files import Files
from fyrehose.records import Run
from tests.doubles.appending import append_runs
from tests.doubles.opened_journal import opened

FYREHOSE = Path(sys.executable).with_name("fyrehose")

#: 2023-11-14T22:13:20 UTC, in microseconds; each batch is a second later.
BEGAN = 1_700_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the directory of a journal with 20 batches, a second apart, in several segments: three streams."""
    now = [BEGAN]
    bench = opened(tmp_path / "data", segment_size=4096, now=lambda: now[0])
    for i in range(20):
        now[0] = BEGAN + i * 1_000_000
        payloads = [b'{"n":%d}' % i, b"\xff", b"x" * 200]
        run = Run.of("log.web", payloads, source="figg", producer="10.0.0.1:9", producer_seq=3 * i, topic="t")
        append_runs(bench.journal, [run, Run.of("log.db", [b"%d" % i], source="http")], [1 + 3 * i, 1 + i])
    bench.append(b"x", stream="evil\x1b[2J\n", source="backbone", event_ids=bytes(16))
    bench.close()
    return bench.directory


def export(data: Path, path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["journal", "export", str(data), str(path), *words], prog_name="fyrehose")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def table(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


FORMS = ["all.ndjson", "all.parquet", "all.arrow"]


def numbers(path: Path) -> list[tuple[str, int]]:
    rows = lines(path) if path.suffix == ".ndjson" else table(path).select(["stream", "seq"]).to_pylist()
    return sorted((row["stream"], row["seq"]) for row in rows)


ALL = sorted(
    [("log.web", n) for n in range(1, 61)] + [("log.db", n) for n in range(1, 21)] + [("evil\x1b[2J\n", 1)],
)


@pytest.mark.parametrize("name", FORMS)
def test_all_records_are_exported(data: Path, tmp_path: Path, name: str) -> None:
    result = export(data, tmp_path / name)
    size = (tmp_path / name).stat().st_size
    assert (result.exit_code, result.stdout) == (0, f"81 records, {size:,} bytes in {tmp_path / name}\n")
    assert numbers(tmp_path / name) == ALL


def test_columns_are_those_of_the_spark_source(data: Path, tmp_path: Path) -> None:
    export(data, tmp_path / "a.parquet", "--stream", "log.web")
    found = table(tmp_path / "a.parquet").to_pylist()[4]
    assert (found["payload"], found["source"], found["producer"]) == (b"\xff", "figg", "10.0.0.1:9")
    assert (found["producer_seq"], found["topic"], found["content_type"], found["event_id"]) == (4, "t", None, None)
    assert found["time"].isoformat() == "2023-11-14T22:13:21+00:00"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--stream", "log.d*"], [("log.db", n) for n in range(1, 21)]),
        (["--stream", "log.db", "--stream", "ev*"], [one for one in ALL if one[0] != "log.web"]),
        (["--stream", "none"], []),
        (["--stream", "log.db", "--from", "5", "--to", "7"], [("log.db", n) for n in (5, 6, 7)]),
        (["--stream", "log.web", "--to", "2"], [("log.web", 1), ("log.web", 2)]),
        (["--stream", "log.*", "--from", "19"], [(s, n) for s, n in ALL if n >= 19 and s.startswith("log")]),
        (
            ["--stream", "log.*", "--from", "2023-11-14T22:13:25", "--to", "2023-11-14T22:13:27"],
            sorted([("log.db", 6), ("log.db", 7), *(("log.web", n) for n in range(16, 22))]),
        ),
    ],
    ids=["pattern", "patterns", "none", "numbers", "end", "number", "times"],
)
def test_only_selected_records_are_exported(
    data: Path, tmp_path: Path, name: str, words: list[str], expected: list[tuple[str, int]]
) -> None:
    result = export(data, tmp_path / name, *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{len(expected)} records")
    assert numbers(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "all.csv",
            [],
            r"all.csv: expected a name ending with .parquet, .arrow, .feather, .ndjson, .jsonl, or --format",
        ),
        ("all.ndjson", ["--from", "yesterday"], "invalid --from 'yesterday': expected a number"),
        ("all.ndjson", ["--to", "{"], "invalid --to '{': expected a number"),
    ],
)
def test_invalid_arguments_are_refused(data: Path, tmp_path: Path, name: str, words: list[str], said: str) -> None:
    result = export(data, tmp_path / name, *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / name).exists()


def test_format_option_overrides_the_suffix(data: Path, tmp_path: Path) -> None:
    assert export(data, tmp_path / "all.txt", "--format", "ndjson").exit_code == 0
    assert len(lines(tmp_path / "all.txt")) == 81


def test_without_pyarrow_the_error_suggests_ndjson(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = export(tmp_path, tmp_path / "all.parquet")
    assert result.exit_code == 2
    assert "pip install 'fyrehose[spark]'; or write --format ndjson" in result.stderr
    assert journal_export.format_of(Path("all.ndjson"), None) == "ndjson"


def damage(data: Path) -> None:
    path = scan.segments(data)[1].path
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FORMS)
def test_damaged_journal_leaves_an_existing_file_unchanged(data: Path, tmp_path: Path, name: str) -> None:
    damage(data)
    (tmp_path / name).write_bytes(b"before")
    result = export(data, tmp_path / name)
    assert result.exit_code == 3
    assert (tmp_path / name).read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize("name", FORMS)
def test_gap_is_an_error_without_skip_gaps(data: Path, tmp_path: Path, name: str) -> None:
    damage(data)
    opened(data, quarantine=True).close()
    result = export(data, tmp_path / name)
    assert result.exit_code == JournalGap.exit_status
    assert not (tmp_path / name).exists()
    result = export(data, tmp_path / name, "--skip-gaps")
    assert result.exit_code == 0, result.output
    assert 0 < len(numbers(tmp_path / name)) < len(ALL)
    assert set(numbers(tmp_path / name)) < set(ALL)


@pytest.mark.parametrize("name", FORMS)
def test_missing_journal_or_directory_is_reported(data: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    result = export(tmp_path / "empty", tmp_path / name)
    assert (result.exit_code, (tmp_path / name).exists()) == (1, False)
    result = export(data, tmp_path / "nowhere" / name)
    assert result.exit_code == 1
    assert f"cannot write {tmp_path}/nowhere/{name}: No such file or directory" in result.stderr


@pytest.mark.parametrize("name", FORMS)
def test_progress_ends_at_the_total_size(data: Path, tmp_path: Path, name: str) -> None:
    seen: list[tuple[int, int]] = []
    wanted = journal_export.selected((), None, None)
    form = journal_export.format_of(tmp_path / name, None)
    job = journal_export.Export(data, form, wanted, False, lambda *n: seen.append(n))
    exported = journal_export.export(job, tmp_path / name)
    assert exported.records == 81
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("link", [False, True])
def test_export_to_a_named_pipe_does_not_replace_it(data: Path, tmp_path: Path, link: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = tmp_path / "link" if link else pipe
    if link:
        path.symlink_to(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        result = export(data, path, "--format", "ndjson", "--stream", "log.db")
        found = os.read(reading, 1 << 16)
    finally:
        os.close(reading)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"20 records in {path}\n")
    assert len(found.splitlines()) == 20
    assert pipe.is_fifo()


def test_export_through_a_symbolic_link_keeps_the_link(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link.ndjson").symlink_to(tmp_path / "file.ndjson")
    assert export(data, tmp_path / "link.ndjson").exit_code == 0
    assert (tmp_path / "link.ndjson").is_symlink()
    assert len(lines(tmp_path / "file.ndjson")) == 81


@pytest.mark.parametrize("words", [("latest", None), ("earliest", None), (None, "latest"), (None, "earliest")])
def test_earliest_and_latest_are_refused_as_bounds(words: tuple[str | None, str | None]) -> None:
    with pytest.raises(ConfigError, match="expected a number or a time"):
        journal_export.selected((), *words)


def test_terminated_export_leaves_no_temporary_file(data: Path, tmp_path: Path) -> None:
    def end(done: int, total: int) -> None:
        assert list(tmp_path.glob(".*.tmp")), "it is under way"
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    job = journal_export.Export(data, "ndjson", journal_export.selected((), None, None), False, end)
    with pytest.raises(SystemExit) as ended:
        journal_export.export(job, tmp_path / "a.ndjson")
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.glob(".*.tmp")) == []
    assert not (tmp_path / "a.ndjson").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["a.ndjson", "a.parquet"])
def test_error_names_the_unreadable_segment(
    data: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Files.open

    def refuse(self: Files, path: Path, flags: int) -> int:
        if path.suffix == scan.SUFFIX:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(self, path, flags)

    monkeypatch.setattr(Files, "open", refuse)
    result = export(data, tmp_path / name)
    assert result.exit_code == 1
    assert ".segment: Permission denied" in result.stderr


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_export_to_standard_output_keeps_earlier_output(data: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "all.ndjson"
    with path.open("wb") as out:
        for part in (b"before\n", b"after\n"):
            out.write(part)
            out.flush()
            words = [FYREHOSE, "journal", "export", data, name, "--format", "ndjson"]
            done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=True, timeout=60, cwd=tmp_path)
            assert done.stderr == f"81 records in {name}\n".encode()
    found = path.read_bytes().splitlines()
    assert (found[0], found[82], len(found)) == (b"before", b"after", 2 * 82)
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith((".tmp", "-"))] == []


def test_replaced_file_keeps_its_permissions(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.touch(0o600)
    assert export(data, path).exit_code == 0
    assert len(lines(path)) == 81
    assert path.stat().st_mode & 0o777 == 0o600
