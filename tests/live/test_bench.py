"""Run each benchmark once with a few messages, to check that all messages are counted, not how fast."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import peers, runner, scraping
from benchmarks.results import Measurement
from fyrehose.bench import servers
from fyrehose.bench.cases import Case, selected
from fyrehose.bench.servers import CannotStart, Contestant

pytestmark = pytest.mark.live

NAMES = (
    "figg/live/4",
    "figg/catch-up",
    "lumberjack/level-3/16-connections",
    "relink/live/1",
    "relink/catch-up",
    "backbone/live/4",
    "backbone/catch-up",
    "eventbus/live/1/16-connections",
    "eventbus/catch-up",
)


def measure(case: Case, directory: Path, *contestants: Contestant) -> list[Measurement]:
    """Run one round, check what must hold of every measurement, and return the measurements."""
    found = runner.run(case, contestants or [servers.FYREHOSE], directory / "servers", 1, "batch")
    assert not directory.joinpath("servers").exists()
    for one in found:
        assert one.median("received") + one.median("lost") == one.median("sent")
        assert one.median("micros") > 0
        assert one.median("peak") > 1 << 20
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_is_measured(name: str, tmp_path: Path) -> None:
    (case,) = selected([name])
    (found,) = measure(case.scaled(0.0005), tmp_path)
    assert found.median("rate") > 0
    assert "acknowledged.50" not in found.figures, "a measurement without a rate has latencies"


@pytest.mark.parametrize("protocol", ["figg", "eventbus"])
def test_metrics_are_scraped_during_a_measurement(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scraped: list[int] = []
    leave = scraping.Scraper.__exit__

    def left(scraper: scraping.Scraper, *reason: object) -> None:
        leave(scraper, *reason)
        scraped.append(scraper.scrapes)

    monkeypatch.setattr(scraping.Scraper, "__exit__", left)
    case = Case(name=f"{protocol}/x", protocol=protocol, messages=200, subscribers=1, window=64)
    plain, metrics = measure(case, tmp_path, servers.FYREHOSE, scraping.FYREHOSE_METRICS)
    assert (plain.contestant, metrics.contestant) == ("fyrehose", "fyrehose-metrics")
    assert scraped[0] == 0
    assert scraped[1] >= 1


def test_a_rate_is_kept_and_latency_reported(tmp_path: Path) -> None:
    case = Case(name="figg/x", protocol="figg", messages=300, subscribers=1, rate=2_000.0)
    (found,) = measure(case, tmp_path)
    assert {"acknowledged.99", "arrived.99"} <= set(found.figures)
    assert found.median("rate") <= 300 / 299 * 2_000


def test_a_slow_subscriber_gets_everything(tmp_path: Path) -> None:
    case = Case(name="figg/x", protocol="figg", messages=400, subscribers=1, rate=2_000.0, reads=1_000.0)
    (found,) = measure(case, tmp_path)
    assert found.median("received") == 400


def test_plain_loops_as_contestants_do_the_same_work(tmp_path: Path) -> None:
    for name, loop in (("backbone/live/4", "udp-loop"), ("eventbus/live/4", "zmq-loop")):
        (case,) = selected([name])
        measure(case.scaled(0.002), tmp_path, peers.PEERS[loop])


@pytest.mark.parametrize(("protocol", "loop"), [("backbone", "udp-loop"), ("eventbus", "zmq-loop")])
def test_a_message_at_a_time_is_timed_from_when_it_was_sent(protocol: str, loop: str, tmp_path: Path) -> None:
    case = Case(name=f"{protocol}/x", protocol=protocol, messages=20, subscribers=1, window=1)
    (found,) = measure(case, tmp_path, peers.PEERS[loop])
    assert 0 < found.median("arrived.50") < servers.PATIENCE, "the latency is counted from the start of the machine"


def test_the_disk_is_measured_in_the_same_run(tmp_path: Path) -> None:
    case = Case(name="figg/x", protocol="figg", messages=20, window=1)
    (found,) = runner.run(case, [peers.PEERS["disk"]], tmp_path / "servers", 1, "batch")
    assert found.median("acknowledged.50") > 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["redis-always", "jetstream"])
def test_other_servers_as_contestants_do_the_same_work(name: str, late: bool, tmp_path: Path) -> None:
    try:
        peers.PEERS[name].version()
    except CannotStart as error:
        pytest.skip(f"a server of others is not installed: {error}")
    case = Case(name="figg/x", protocol="figg", messages=2_500, subscribers=2, late=late)
    measure(case, tmp_path, peers.PEERS[name])


def test_starts_are_timed_with_an_existing_journal(tmp_path: Path) -> None:
    (case,) = selected(["start/10G/killed"])
    (found,) = runner.run(case.scaled(0.0001), [servers.FYREHOSE], tmp_path / "servers", 1, "batch")
    assert found.median("seconds") > 0


def test_the_memory_of_idle_connections_is_measured(tmp_path: Path) -> None:
    (case,) = selected(["figg/idle"])
    (found,) = runner.run(case.scaled(0.005), [servers.FYREHOSE], tmp_path / "servers", 1, "batch")
    assert "each" in found.figures


def test_the_reference_server_of_figg_is_started_with_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script with the other server's options starts our server: the test checks these options."""
    twistd = shutil.which("twistd", path=str(Path(servers.twistd()).parent))
    script = tmp_path / "figg"
    script.write_text(
        '#!/bin/sh\n[ "$1 $3 $5" = "--addr --admin-addr --commitlog.dir" ] || exit 2\n'
        f'exec {twistd} --pidfile= -n fyrehose --data-dir "$6" --listen "figg=tcp:${{2#*:}}:interface=127.0.0.1"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("FIGG_SERVER", str(script))
    case = Case(name="figg/x", protocol="figg", messages=100, subscribers=1)
    measure(case, tmp_path, peers.PEERS["figg-server"])
