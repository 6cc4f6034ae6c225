"""TLS between a server of a cluster and the NATS servers."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from benchmarks.nats_servers import program
from fyrehose.cluster.jetstream import JetStreamLog
from fyrehose.cluster.settings import ReplicationSettings, completed
from fyrehose.errors import ConfigError
from fyrehose.testing.ports import free_port
from fyrehose.toml_files import Mistake, structured
from tests.doubles.patience import patiently

CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{directory}/store", sync_interval: always }}
tls {{ cert_file: "{directory}/server.pem", key_file: "{directory}/server.key", ca_file: "{directory}/server.pem", \
verify: true }}
"""


def settings(**more: str) -> ReplicationSettings:
    table = {"servers": ["tls://127.0.0.1:4222"], "name": "a", **more}
    return completed(structured(ReplicationSettings, table), "")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a certificate for 127.0.0.1 and its key."""
    made = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=nats -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *words.split(), "-keyout", str(made / "server.key"), "-out", str(made / "server.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return made


def test_without_certificate_files_nats_is_connected_without_tls() -> None:
    assert set(settings().connect_options()) == {"inbox_prefix"}


def test_credentials_file_is_passed_to_nats_if_it_can_be_read(files: Path) -> None:
    file = str(files / "server.key")
    assert settings(credentials=file).connect_options()["user_credentials"] == file
    with pytest.raises(ConfigError, match="cannot read credentials missing: No such file"):
        settings(credentials="missing").connect_options()


def test_only_certificates_of_the_configured_authority_are_accepted(files: Path) -> None:
    context = settings(tls_authorities=str(files / "server.pem")).connect_options()["tls"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


def test_a_certificate_needs_its_key(files: Path) -> None:
    with pytest.raises(Mistake, match="both tls-certificate and tls-key"):
        settings(tls_certificate=str(files / "server.pem"))


def test_certificate_files_that_cannot_be_used_are_named(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot use tls-authorities missing\.pem: No such file"):
        settings(tls_authorities="missing.pem").connect_options()
    with pytest.raises(ConfigError, match=r"cannot use tls-certificate .*key and tls-key .*key: expected PEM files"):
        settings(tls_certificate=str(files / "server.key"), tls_key=str(files / "server.key")).connect_options()


@pytest.fixture
def port(files: Path) -> Iterator[int]:
    """Start a NATS server that accepts only clients with a certificate; return its port."""
    executable = program()
    assert executable is not None
    number = free_port()
    (files / "nats.conf").write_text(CONFIG.format(port=number, directory=files))
    with (files / "log").open("wb") as log:
        process = subprocess.Popen([executable, "-c", str(files / "nats.conf")], stdout=subprocess.DEVNULL, stderr=log)
    deadline = time.monotonic() + 60
    while b"Server is ready" not in (files / "log").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    yield number
    process.kill()
    process.wait()


@pytest.mark.live
@pytest.mark.skipif(program() is None, reason="a server of others is not installed: nats-server")
def test_the_shared_log_opens_over_tls(files: Path, port: int) -> Any:
    pem, key = str(files / "server.pem"), str(files / "server.key")
    options = settings(tls_authorities=pem, tls_certificate=pem, tls_key=key).connect_options()

    async def opened() -> None:
        log = JetStreamLog(reactor, [f"tls://127.0.0.1:{port}"], "tls", 1, options=options)
        try:
            await patiently(log.open, lambda message: None)
            extent = await patiently(log.extent)
            assert extent.last == 0
        finally:
            await log.close()

    return Deferred.fromCoroutine(opened())
