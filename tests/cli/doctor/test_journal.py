"""What `fyrehose doctor` finds in a journal's files, in its backups, and at its server."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from fyrehose import __version__
from fyrehose.cli import main
from fyrehose.cli.client.remote import RemoteServer
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cli.doctor.journal import DAY_S, backups, journal, judged_unit, seconds, server, unit
from fyrehose.errors import FyrehoseError
from fyrehose.journal import scan, subscriptions
from fyrehose.observe.meters import LONGEST_WRITE
from tests.doubles.opened_journal import opened


def write(directory: Path, ahead: float = 0.0) -> None:
    """Write a record into the journal in *directory*, by a clock that is so many seconds ahead."""
    bench = opened(directory, now=lambda: int((time.time() + ahead) * 1e6))
    bench.append(b"x" * 1000, stream="log")
    bench.close()
    directory.chmod(0o700)


def worse(findings: Any) -> list[tuple[Level, str]]:
    return [(each.level, each.subject) for each in findings if each.level > Level.OK]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "data")
    return tmp_path / "data"


def test_directory_without_journal_is_noted(tmp_path: Path) -> None:
    assert worse(journal(tmp_path / "none", None)) == [(Level.NOTE, "journal")]


def test_intact_journal_has_no_warnings(data: Path) -> None:
    (found,) = journal(data, None)
    assert (found.level, found.where) == (Level.OK, str(data))
    assert "1 segment" in found.what


@pytest.mark.parametrize(
    ("directory", "file", "found"),
    [
        (0o755, 0o644, [(Level.WARNING, "journal")]),
        (0o755, 0o640, []),
        (0o750, 0o644, []),
        (0o777, 0o640, [(Level.ERROR, "journal")]),
    ],
)
def test_journal_that_others_can_read_or_change_is_reported(
    directory: int, file: int, found: list[tuple[Level, str]], data: Path
) -> None:
    data.chmod(directory)
    scan.segments(data)[-1].path.chmod(file)
    assert worse(journal(data, None)) == found


def test_damage_in_the_newest_segment_is_an_error(data: Path) -> None:
    path = scan.segments(data)[-1].path
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 1000) + 5] ^= 1
    path.write_bytes(content)
    assert worse(journal(data, None)) == [(Level.ERROR, "journal")]


def test_missing_mark_is_reported(data: Path) -> None:
    (data / scan.MARK_NAME).unlink()
    assert (Level.WARNING, "journal") in worse(journal(data, None))


def test_bytes_that_were_set_aside_are_noted(data: Path) -> None:
    (data / "quarantine-0000000000000000.bytes").touch()
    assert worse(journal(data, None)) == [(Level.NOTE, "journal")]


def test_clock_behind_the_newest_record_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "data", ahead=7200)
    assert worse(journal(tmp_path / "data", None)) == [(Level.WARNING, "clock")]


def test_program_that_has_not_read_the_files_for_a_day_is_reported(data: Path) -> None:
    subscriptions.update(data, "lake", 0, now=int((time.time() - 3 * DAY_S) * 1e6))
    subscriptions.update(data, "busy", 0)
    (found,) = [each for each in journal(data, None) if each.level > Level.OK]
    assert (found.level, found.subject) == (Level.WARNING, "reader")
    assert "'lake'" in found.what
    assert "3 days ago" in found.what


def copied(data: Path, place: Path) -> Path:
    assert CliRunner().invoke(main, ["journal", "backup", str(data), str(place)]).exit_code == 0
    return place


def aged(place: Path, by: float) -> None:
    for path in place.iterdir():
        os.utime(path, (time.time() - by, time.time() - by))


def test_unknown_backup_is_noted(data: Path) -> None:
    assert worse(backups(data, (), DAY_S)) == [(Level.NOTE, "backup")]


def test_complete_backup_is_never_too_old(data: Path, tmp_path: Path) -> None:
    place = copied(data, tmp_path / "copy")
    aged(place, 30 * DAY_S)
    (found,) = backups(data, (place,), DAY_S)
    assert (found.level, found.what) == (Level.NOTE, "up to date; not verified")
    (found,) = backups(data, (place,), DAY_S, verifying=True)
    assert (found.level, found.what) == (Level.OK, "up to date; every byte verified")


def test_damaged_byte_of_a_backup_is_found_only_by_verifying_it(data: Path, tmp_path: Path) -> None:
    place = copied(data, tmp_path / "copy")
    path = scan.segments(place)[-1].path
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 1000) + 5] ^= 1
    path.write_bytes(content)
    assert worse(backups(data, (place,), DAY_S)) == [(Level.NOTE, "backup")]
    (found,) = backups(data, (place,), DAY_S, verifying=True)
    assert (found.level, found.what.partition(":")[0]) == (Level.ERROR, "it is damaged")


def test_backup_shorter_than_its_vouched_end_is_an_error(data: Path, tmp_path: Path) -> None:
    place = copied(data, tmp_path / "copy")
    path = scan.segments(place)[-1].path
    os.truncate(path, path.stat().st_size - 100)
    (found,) = backups(data, (place,), DAY_S)
    assert found.level is Level.ERROR
    assert "is shorter than its file END says" in found.what


def test_backup_ahead_of_the_journal_is_an_error(data: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(data, tmp_path / "older"))
    write(data)
    (found,) = backups(older, (copied(data, tmp_path / "copy"),), DAY_S)
    assert found.level is Level.ERROR
    assert "ahead of the journal" in found.what


def test_backup_whose_end_is_unknown_is_a_warning(data: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(copied(data, tmp_path / "b"), tmp_path / "copy"))
    write(data)
    shutil.copy(copied(data, tmp_path / "newer") / "MARK", place / "MARK")  # as a copy that ends between two batches
    (place / "END").unlink()
    (found,) = backups(data, (place,), DAY_S)
    assert (found.level, found.what.partition(":")[0]) == (Level.WARNING, "its end is unknown")


@pytest.mark.parametrize(("age", "level"), [(3600.0, Level.NOTE), (3 * DAY_S, Level.WARNING)])
def test_incomplete_backup_is_reported_when_it_is_too_old(age: float, level: Level, data: Path, tmp_path: Path) -> None:
    place = copied(data, tmp_path / "copy")
    write(data)
    aged(place, age)
    found = list(backups(data, (place,), DAY_S))
    assert max(each.level for each in found) is level
    assert "behind" in found[0].what


def test_backup_of_another_journal_is_an_error(data: Path, tmp_path: Path) -> None:
    write(tmp_path / "other")
    (found,) = backups(data, (copied(tmp_path / "other", tmp_path / "copy"),), DAY_S)
    assert (found.level, found.what) == (Level.ERROR, "it is the backup of another journal")


def test_backup_that_is_not_there_is_an_error(data: Path, tmp_path: Path) -> None:
    assert worse(backups(data, (tmp_path / "none",), DAY_S)) == [(Level.ERROR, "backup")]


HEALTHY: dict[str, Any] = {
    "version": __version__,
    "uptime": 7200.0,
    "pid": 7,
    "journal": {"state": "writable", "full_in": None},
    "reactor": {"lag_p99": 0.01},
    "refusals": [],
}


@attrs.frozen
class Answering(RemoteServer):
    answer: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    def status(self, match: str = "", limit: int = 200) -> dict[str, Any]:
        if not self.answer:
            raise FyrehoseError("cannot connect")
        return self.answer


def asked(**changes: Any) -> list[Finding]:
    return list(server(Answering("http://h:1", answer={**HEALTHY, **changes})))


def test_healthy_server_has_no_warnings() -> None:
    (found,) = asked()
    assert (found.level, found.what) == (Level.OK, "serving, up 2 hours, pid 7")


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"journal": {"state": "read-only"}}, (Level.ERROR, "server")),
        ({"version": "0.1"}, (Level.WARNING, "server")),
        ({"journal": {"state": "writable", "full_in": 7 * DAY_S - 1}}, (Level.WARNING, "disk")),
        ({"journal": {"state": "writable", "full_in": 7 * DAY_S}}, None),
        ({"journal": {"state": "writable", "write_age": LONGEST_WRITE}}, (Level.ERROR, "disk")),
        ({"journal": {"state": "writable", "write_age": LONGEST_WRITE - 0.1}}, None),
        ({"reactor": {"lag_p99": 1.01}}, (Level.WARNING, "server")),
        ({"reactor": {"lag_p99": 1.0}}, None),
        ({"refusals": [{"protocol": "figg", "cause": "Forbidden", "count": 9}]}, (Level.NOTE, "refused")),
    ],
)
def test_problems_in_the_status_of_a_server_are_reported(
    changes: dict[str, Any], finding: tuple[Level, str] | None
) -> None:
    assert worse(asked(**changes)) == ([] if finding is None else [finding])


def test_server_that_does_not_answer_is_noted() -> None:
    assert worse(server(Answering("http://h:1"))) == [(Level.NOTE, "server")]


GOOD = {"Restart": "on-failure", "WatchdogUSec": "30s", "TimeoutStopUSec": "1min 30s", "UMask": "0077"}


def test_systemd_unit_of_the_repository_has_no_warnings() -> None:
    assert worse(judged_unit("fyrehose.service", GOOD, 10)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("Restart", "no"), ("WatchdogUSec", "0"), ("TimeoutStopUSec", "30s"), ("UMask", "0022")],
)
def test_missing_settings_of_a_systemd_unit_are_reported(name: str, value: str) -> None:
    (found,) = judged_unit("fyrehose.service", {**GOOD, name: value}, 10)
    assert found.level is Level.WARNING
    assert "deploy/systemd/fyrehose.service" in found.advice


@pytest.mark.parametrize(
    ("span", "expected"), [("0", 0), ("500ms", 0.5), ("1min 30s", 90), ("2h", 7200), ("infinity", float("inf"))]
)
def test_time_spans_of_systemd_are_read(span: str, expected: float) -> None:
    assert seconds(span) == expected


def test_process_without_a_systemd_unit_has_no_finding_about_it() -> None:
    assert list(unit(1 << 30, 10)) == []
