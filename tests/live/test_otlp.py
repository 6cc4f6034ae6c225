"""Test OTLP logs with OpenTelemetry's own exporter against a server that is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from fyrehose.testing.ports import free_port
from tests.live.conftest import stored

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(params=list(Compression))
def provider(request: Any) -> Iterator[tuple[LoggerProvider, int]]:
    """Return a provider of an application that exports its logs, and the port to which it does."""
    port = free_port()
    exporter = OTLPLogExporter(f"http://127.0.0.1:{port}/v1/logs", compression=request.param, timeout=30)
    provider = LoggerProvider(Resource.create({"service.name": "shop"}))
    provider.add_log_record_processor(
        BatchLogRecordProcessor(exporter, schedule_delay_millis=20, max_queue_size=10_000)
    )
    yield provider, port
    provider.shutdown()


def test_logs_of_an_application_survive_kills(provider: Any, start: Any, tmp_path: Path) -> None:
    provider, port = provider
    log = provider.get_logger("shop.cart")
    for part in range(4):
        server = start("--listen", f"http=tcp:{port}:interface=127.0.0.1")
        for number in range(500):
            body, attributes = f"sold {part * 500 + number}", {"part": part}
            log.emit(LogRecord(severity_number=SeverityNumber.WARN, body=body, attributes=attributes))
        time.sleep(0.1)
        if part < 3:
            server.stop(signal.SIGKILL)
    assert provider.force_flush(60_000)
    assert server.stop() == 0
    found = [json.loads(each["payload"]) for each in stored(tmp_path / "data", "otlp")]
    assert {each["body"] for each in found} == {f"sold {number}" for number in range(2_000)}
    assert {each["resource"]["service.name"] for each in found} == {"shop"}
    assert {(each["severity_number"], each["scope"]["name"]) for each in found} == {(13, "shop.cart")}
    assert {each["attributes"]["part"] for each in found} == set(range(4))
