"""Metrics of a command are in a file, or served over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.core import Metric

from fyrehose.errors import ConfigError, FyrehoseError
from fyrehose.observe.exporting import CommandMetrics, families


class Thermometer(CommandMetrics):
    def collect(self) -> Iterable[Metric]:
        gauges = {"degrees": ("How warm it is.", 21.5)}
        return families(gauges, {"readings": ("How often it was read.", 3)}, ("room",), ("hall",))


def test_metrics_are_served_over_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FyrehoseError, match=f"cannot listen on 127.0.0.1:{port} for --metrics: Address already"):
            Thermometer(f"127.0.0.1:{port}").start()
    metrics = Thermometer(f"127.0.0.1:{port}")
    metrics.start()
    metrics.write(strict=True)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    metrics.stop()
    metrics.stop()
    assert 'fyrehose_degrees{room="hall"} 21.5' in text
    assert 'fyrehose_readings_total{room="hall"} 3.0' in text


def test_metrics_are_in_a_file_that_is_replaced(tmp_path: Path) -> None:
    metrics = Thermometer(str(tmp_path / "a.prom"))
    metrics.start()
    metrics.write(strict=True)
    assert "# HELP fyrehose_degrees How warm it is." in (tmp_path / "a.prom").read_text()


def test_error_of_a_file_is_raised_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Thermometer(str(tmp_path / "not" / "a.prom"))
    metrics.start()
    metrics.write(strict=False)
    assert caplog.messages[0].startswith(f"metrics were not written to {tmp_path / 'not' / 'a.prom'}: ")
    with pytest.raises(FileNotFoundError):
        metrics.write(strict=True)


@pytest.mark.parametrize("where", ["metrics.txt", ":80", "localhost:0", "localhost:x"])
def test_place_is_a_file_or_an_address(where: str) -> None:
    with pytest.raises(ConfigError, match=r"expected FILE.prom or HOST:PORT"):
        Thermometer(where).start()
