"""Test the TLS context of clients with an authority that Python 3.13 would refuse, and that no client makes its own."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fyrehose.client_tls import client_context
from fyrehose.testing.certificates import Authority
from fyrehose.web.blocking_client import BlockingClient
from tests.doubles.answering import Answering, own

PACKAGE = Path(__file__).parents[1] / "fyrehose"


def ask(authority: Authority, context: ssl.SSLContext) -> int:
    """Send a request to a server with a certificate of *authority*, and return the status of the answer."""
    issued = authority.issue("server", "127.0.0.1")
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(issued.certificate, issued.key)
    with (
        Answering([own({"ok": True})], of_server) as there,
        BlockingClient(f"https://127.0.0.1:{there.port}", context=context) as client,
    ):
        return client.ask("GET", "/").status


def test_authority_without_key_usage_is_trusted_on_each_python(tmp_path: Path) -> None:
    authority = Authority(tmp_path, key_usage=False)
    assert ask(authority, client_context(authority.certificate)) == 200
    strict = client_context(authority.certificate)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    with pytest.raises(ssl.SSLCertVerificationError, match="key usage"):
        ask(authority, strict)


def test_certificates_for_tests_pass_strict_verification(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    strict = client_context(authority.certificate)
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    assert ask(authority, strict) == 200


def test_certificate_of_another_authority_and_another_name_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        ask(authority, client_context(other.certificate))
    context = client_context(authority.certificate)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_no_other_module_makes_a_context_of_its_own() -> None:
    makes = ("create_default_context(", "SSLContext(", "HTTPSConnection", "urlopen(")
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if any(m in path.read_text() for m in makes)
    }
    assert found == {"client_tls.py"}
