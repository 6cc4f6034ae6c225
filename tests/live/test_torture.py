"""Run each program of tests/verification/torture for a short time; `make torture` runs them for long."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.nats_servers import program

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

TORTURE = Path(__file__).parents[1] / "verification" / "torture"
sys.path.insert(0, str(TORTURE))
herd_attacks = import_module("herd_attacks")
#: Where programs of the system are, which the path of a user may lack.
SBIN = "/usr/sbin:/usr/local/sbin:/usr/bin"


def run(name: str, *words: str, status: int | None = 0) -> str:
    """Run a program, which must end with ``status`` (None: any); return its output."""
    command = [sys.executable, str(TORTURE / name), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert status is None or ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("durability", ["batch", "never"])
def test_kill_loses_no_acknowledged_record(durability: str, tmp_path: Path) -> None:
    words = ("--count", "4", "--seed", "11", "--durability", durability, "--directory", str(tmp_path / "made"))
    assert " 0 violations" in run("kill9.py", *words)
    assert not list(tmp_path.joinpath("made").iterdir())


@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_events_with_an_identity_are_stored_once_over_takeovers(tmp_path: Path) -> None:
    run("weather.py", "--leaders", "--each", "--rounds", "1", "--kinds", "kill,stop", "--directory", str(tmp_path))


@pytest.mark.skipif(
    shutil.which("rsyslogd", path=SBIN) is None, reason="a program of others is not installed: rsyslogd"
)
def test_messages_of_rsyslog_survive_kills(tmp_path: Path) -> None:
    words = ("--messages", "20000", "--kills", "3", "--directory", str(tmp_path))
    assert ", 0 lost, " in run("syslog_kill.py", *words)
    assert ", 1 lost, " in run("syslog_kill.py", *words, "--sabotage", status=1)


def test_forwarded_records_survive_kills(tmp_path: Path) -> None:
    """Kafka is left out, whose brokers end with the process that has them."""
    chosen = [word for name in ("fyrehose", "elasticsearch", "lumberjack", "relp") for word in ("--only", name)]
    said = run("forward_kill.py", "--kills", "4", "--directory", str(tmp_path), *chosen)
    assert said.count("; 0 lost, ") == 4


def test_forwarded_records_that_are_skipped_are_noticed(tmp_path: Path) -> None:
    words = ("--kills", "1", "--only", "elasticsearch", "--sabotage", "--directory", str(tmp_path))
    assert "; 0 lost, " not in run("forward_kill.py", *words, status=1)


def test_torture_detects_lost_records(tmp_path: Path) -> None:
    # It ends with the first loss; on a busy machine many kills come before the last bytes are acknowledged.
    words = ("--count", "30", "--seed", "12", "--busy", "500", "--sabotage", "--directory", str(tmp_path))
    assert "VIOLATION" in run("kill9.py", *words, status=1)
    shutil.rmtree(tmp_path)


def test_torture_detects_events_that_are_stored_again(tmp_path: Path) -> None:
    words = ("--count", "30", "--seed", "12", "--busy", "500", "--option", "lumberjack.resent=store")
    assert "is stored again, but was sent once" in run("kill9.py", *words, "--directory", str(tmp_path), status=1)
    shutil.rmtree(tmp_path)


def test_flipped_bits_and_truncated_files_are_noticed() -> None:
    shapes = [word for shape in ("tiny", "large", "streams", "200 KiB") for word in ("--shape", shape)]
    said = run("bits.py", "--count", "150", "--size", "8192", *shapes)
    assert said.count(" 0 wrong") == 12


def test_no_acknowledged_record_is_lost_with_a_full_disk() -> None:
    assert "after there was room again" in run("faults.py", "--part", "limit")


@pytest.mark.parametrize("durability", ["batch", "never"])
def test_no_acknowledged_record_is_lost_in_power_cuts(durability: str) -> None:
    said = run("power.py", "--count", "12", "--durability", durability)
    assert said.startswith("skipped: ") or " 0 violations" in said


def test_the_power_cut_test_notices_lost_records() -> None:
    said = run("power.py", "--count", "6", "--seed", "3", "--sabotage", status=None)
    assert said.startswith("skipped: ") or "VIOLATION" in said
    assert "VIOLATION" in run("reorder.py", "--count", "2", "--sabotage", status=1)


def test_every_state_that_a_power_cut_may_leave_is_recovered() -> None:
    assert " 0 violations" in run("reorder.py", "--count", "1", "--seed", "5", "--choices", "2", "--turns", "2")


def test_failures_of_any_system_call_lose_no_acknowledged_record() -> None:
    said = run("sweep.py", "--count", "3", "--seed", "3")
    assert said.startswith("skipped: ") or " 0 violations" in said


def test_many_clients_reconnect_after_a_restart_without_loss() -> None:
    said = run("herd.py", "--part", "herds", "--clients", "20", "--together", "--within", "60", "--limit", "60")
    assert "\n0 violations" in said
    assert "kill -9  eventbus" in said


@pytest.mark.parametrize("attack", herd_attacks.ATTACKS)
def test_a_hostile_host_keeps_no_honest_client_waiting(attack: str) -> None:
    words = ("--part", "hostile", "--attack", attack, "--seconds", "3", "--patience", "60")
    assert "\n0 violations" in run("herd.py", *words)


#: Within 12 seconds a server is killed at least once: at most 4 seconds after it began to serve.
WORKERS = ("--records", "400", "--minutes", "0.2", "--kills", "2")


def test_each_input_of_workers_has_one_result_over_kills(tmp_path: Path) -> None:
    assert "'server killed': " in run("workers.py", *WORKERS, "--directory", str(tmp_path / "made"))


@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_each_input_of_workers_has_one_result_although_leaders_are_killed(tmp_path: Path) -> None:
    assert "'take-over': " in run("workers_takeovers.py", *WORKERS, "--directory", str(tmp_path / "made"))


def test_soak_with_kills_finds_no_violation() -> None:
    assert " 0 violations" in run("soak.py", "--minutes", "0.05", "--every", "1", "--kills")


def test_typed_tables_have_each_event_once_after_kills() -> None:
    assert "1 kills (1 driver): 0 problems" in run("tables_kill.py", "--warm", "--count", "1", "--busy", "3")


def test_a_server_is_fuzzed_at_every_listener() -> None:
    assert " 0 violations" in run("soak.py", "--attacks", "150")
