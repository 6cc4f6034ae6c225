"""What `fyrehose doctor` finds about the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fyrehose.bench.disk import Mount
from fyrehose.cli.doctor.findings import Finding, Level
from fyrehose.cli.doctor.machine import Disk, clock, descriptors, disk, memory, permissions, versions
from fyrehose.journal.settings import JournalSettings

GIB = 1 << 30
MIB = 1 << 20


def levels(found: list[Finding]) -> dict[str, Level]:
    """Return the worst level of each subject."""
    return {each.subject: max(other.level for other in found if other.subject == each.subject) for each in found}


def test_versions_are_reported() -> None:
    text = next(versions()).what
    assert all(word in text for word in ("Fyrehose", "Python", "Twisted", "OpenSSL"))


def test_package_that_is_too_old_is_reported() -> None:
    required = ["Twisted[tls]>=26.4", "attrs>=9999.1", "not-there>=1", 'numpy>=9999; extra == "spark"']
    old, missing = [each for each in versions(required) if each.subject == "versions" and each.level > Level.OK]
    assert (old.level, old.where) == (Level.WARNING, "attrs")
    assert "attrs>=9999.1" in old.advice
    assert (missing.level, missing.where) == (Level.ERROR, "not-there")


@pytest.mark.parametrize("native", [True, False])
def test_kernels_are_reported(native: bool) -> None:
    assert levels(list(versions(native=native)))["kernels"] is (Level.OK if native else Level.WARNING)


def test_advice_for_missing_kernels_does_not_install_the_cached_wheel_again() -> None:
    (chosen,) = [each for each in versions(native=False, pure=True) if each.subject == "kernels"]
    (missing,) = [each for each in versions(native=False, pure=False) if each.subject == "kernels"]
    assert chosen.advice == "unset FYREHOSE_PURE"
    assert "install a C compiler" in missing.advice
    assert "--no-cache-dir" in missing.advice


@pytest.mark.parametrize(("value", "pure"), [("1", True), ("0", False), ("", False)])
def test_only_one_selects_the_kernels_in_pure_python(value: str, pure: bool) -> None:
    code = "from fyrehose import kernels; print(kernels.PURE, kernels.PURE and kernels.NATIVE)"
    environment = {**os.environ, "FYREHOSE_PURE": value}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == f"{pure} False\n"


def test_clock_is_synchronized_or_not() -> None:
    (found,) = clock()
    assert found.subject == "clock"
    assert found.level in (Level.OK, Level.NOTE, Level.WARNING)


def test_budget_has_to_fit_into_memory() -> None:
    (much,) = memory(1 << 50)
    (little,) = memory(1 << 20)
    assert (much.level, little.level) == (Level.WARNING, Level.OK)
    assert "server.memory" in much.advice


def test_container_limits_memory(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{1 << 20}\n")
    (found,) = memory(1 << 20, limit)
    assert (found.level, found.where) == (Level.WARNING, "this container or unit")


def test_descriptors_have_to_suffice_for_all_connections() -> None:
    (few,) = descriptors(1 << 40, True, None)
    (default,) = descriptors(1 << 40, False, None)
    (enough,) = descriptors(10, True, None)
    assert (few.level, default.level, enough.level) == (Level.WARNING, Level.NOTE, Level.OK)
    assert "LimitNOFILE" in few.advice


def test_descriptor_limit_is_that_of_the_running_server() -> None:
    found = list(descriptors(10, False, os.getpid()))
    assert found[0].where == f"process {os.getpid()}"


def of_size(free: int, kind: str = "ext4", options: tuple[str, ...] = ("rw",)) -> Callable[[Path], Disk]:
    """Return a function that finds a disk of 100 GiB."""
    return lambda path: Disk(100 * GIB, free, (1_000_000, 900_000), Mount(kind, options))


@pytest.mark.parametrize("min_free", [GIB // 4, 3 * GIB])
def test_space_and_inodes_are_judged_at_each_bound(min_free: int, tmp_path: Path) -> None:
    """A disk of 100 GiB is nearly full below four times min-free, or below a twentieth, whatever is more."""
    bounds = (min_free, 4 * min_free, 5 * GIB, 100 * GIB)
    for free in sorted({bound + more for bound in bounds for more in (-1, 0, 1)} - {100 * GIB + 1}):
        for keep in (0, 100 * GIB - min_free, 100 * GIB - min_free + 1):
            for inodes, few in (((0, 0), False), ((1000, 19), True), ((1000, 20), False)):
                look = Disk(100 * GIB, free, inodes, Mount("ext4", ("rw",)))
                found = disk(
                    tmp_path, JournalSettings(min_free=min_free, keep_bytes=keep), lambda path, look=look: look
                )
                levels = [(each.level, each.what) for each in found if each.subject == "disk"]
                level = Level.OK
                if free < min_free:
                    level = Level.ERROR
                elif free < 4 * min_free or free < 5 * GIB:
                    level = Level.WARNING
                expected = [(level, "of 100.0 GiB free")]
                expected += [(Level.WARNING, "journal.keep-bytes is")] * (keep > 100 * GIB - min_free)
                expected += [(Level.WARNING, "inodes of 1,000 free")] * few
                assert [level for level, _ in levels] == [level for level, _ in expected], (free, keep, inodes)
                assert all(words in what for (_, what), (_, words) in zip(levels, expected, strict=True)), levels


@pytest.mark.parametrize(
    ("total", "advice"),
    [
        (300 * MIB, "set journal.min-free = 32MiB and journal.segment-size = 8MiB, or use a larger disk"),
        (345 * MIB, "set journal.min-free = 32MiB and journal.segment-size = 8MiB, or use a larger disk"),
        (346 * MIB, ""),
    ],
)
def test_disk_that_never_has_room_for_a_segment_and_min_free_is_an_error(
    total: int, advice: str, tmp_path: Path
) -> None:
    settings = JournalSettings()
    assert (settings.min_free, settings.segment_size) == (256 * MIB, 64 * MIB)
    small = Disk(total, total, (1_000, 900), Mount("ext4", ("rw",)))
    found = next(iter(disk(tmp_path, settings, lambda path: small)))
    assert (found.level is Level.ERROR, found.advice if found.level is Level.ERROR else "") == (bool(advice), advice)
    advised = JournalSettings(min_free=32 * MIB, segment_size=8 * MIB)
    assert next(iter(disk(tmp_path, advised, lambda path: small))).level is Level.OK


@pytest.mark.parametrize(
    ("mount", "level", "words"),
    [
        (Mount("tmpfs", ("rw",)), Level.ERROR, "a restart loses everything"),
        (Mount("nfs4", ("rw",)), Level.WARNING, "another machine"),
        (Mount("overlay", ("rw",)), Level.WARNING, "container"),
        (Mount("ext4", ("rw", "nobarrier")), Level.ERROR, "nobarrier"),
        (Mount("ext4", ("ro",)), Level.ERROR, "read-only"),
    ],
)
def test_unsuitable_file_system_is_reported(mount: Mount, level: Level, words: str, tmp_path: Path) -> None:
    assert [
        each.level
        for each in disk(tmp_path, JournalSettings(), of_size(50 * GIB, mount.kind, mount.options))
        if words in each.what
    ] == [level]


@pytest.mark.parametrize(
    ("times", "level"), [([0.001] * 100, Level.OK), ([0.1] * 100, Level.WARNING), ([1e-6] * 100, Level.WARNING)]
)
def test_syncs_are_timed(times: list[float], level: Level, tmp_path: Path) -> None:
    found_times = disk(tmp_path, JournalSettings(), time_syncs=lambda path, count: times)
    (found,) = [each for each in found_times if each.subject == "sync"]
    assert found.level is level


def test_timing_syncs_leaves_no_file(tmp_path: Path) -> None:
    assert [each for each in disk(tmp_path, JournalSettings()) if each.subject == "sync"]
    assert list(tmp_path.iterdir()) == []


def test_directory_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    def refused(*args: Any) -> list[float]:
        raise PermissionError(13, "Permission denied")

    (found,) = [each for each in disk(tmp_path, JournalSettings(), time_syncs=refused) if each.subject == "sync"]
    assert (found.level, found.what) == (Level.NOTE, "not timed: Permission denied")


def test_missing_directory_is_examined_by_its_nearest_parent(tmp_path: Path) -> None:
    assert next(iter(disk(tmp_path / "a" / "b", JournalSettings()))).where == str(tmp_path)


@pytest.mark.parametrize(
    ("mode", "private", "words"),
    [(0o644, True, "can read"), (0o600, True, ""), (0o640, True, ""), (0o644, False, ""), (0o666, False, "can change")],
)
def test_permissions_of_files_are_checked(mode: int, private: bool, words: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    file.chmod(mode)
    found = list(permissions(file, "key", private))
    assert bool(found) is bool(words)
    assert all(words in each.what and each.level is Level.ERROR for each in found)


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (found,) = permissions(tmp_path / "key", "key", private=True)
    assert (found.level, found.what) == (Level.ERROR, "cannot be read: No such file or directory")
