"""Run the commands of the pages and recipes that make certificates, and verify the certificates strictly.

Python 3.13 verifies by RFC 5280 unless a program asks for less (VERIFY_X509_STRICT); so do programs of others, which
meet these certificates, too.
"""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="a program of others is not installed: openssl"),
    pytest.mark.slow,
]


@attrs.frozen
class Made:
    """The names of the files that a page's commands have made, without `.pem`, and a name of the server."""

    authority: str
    certificate: str
    key: str
    host: str
    client: str
    client_key: str


def of_operating(folder: Path) -> Made:
    (block,) = re.findall(r"```sh\n(openssl req -x509 .*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    run(block, folder)
    return Made("authority.pem", "server.pem", "server.key", "localhost", "beats-7.pem", "beats-7.key")


def of_cluster(folder: Path) -> Made:
    page = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"^    openssl req -x509 .*?^    done$", page, re.DOTALL | re.MULTILINE)
    assert "IP:10.0.0.$i" in block
    run(block, folder)
    return Made("ca.pem", "cert-1.pem", "key-1.pem", "10.0.0.1", "cert-2.pem", "key-2.pem")


def of_filebeat(folder: Path) -> Made:
    script = ROOT / "deploy" / "recipes" / "filebeat" / "certificates.sh"
    run(f"sh '{script}' logs.example.com web-1", folder)
    return Made("authority.pem", "server.pem", "server.key", "logs.example.com", "web-1.pem", "web-1.key")


def run(commands: str, folder: Path) -> None:
    subprocess.run(["sh", "-eu", "-c", commands], cwd=folder, check=True, capture_output=True, timeout=100)


@pytest.mark.parametrize("make", [of_operating, of_cluster, of_filebeat])
def test_certificates_of_the_page_pass_strict_verification_in_both_directions(
    make: Callable[[Path], Made], tmp_path: Path
) -> None:
    made = make(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / made.authority))
    server.load_cert_chain(tmp_path / made.certificate, tmp_path / made.key)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(tmp_path / made.authority))
    client.load_cert_chain(tmp_path / made.client, tmp_path / made.client_key)
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=made.host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert all(end.getpeercert() for end in ends)
