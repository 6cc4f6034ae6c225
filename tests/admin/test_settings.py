"""Options of the admin listener: which endpoints and tokens are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.admin.settings import TOKEN_FILE, AdminSettings, check_place
from fyrehose.errors import ConfigError
from fyrehose.web.tokens import read_token


@pytest.mark.parametrize(
    ("endpoint", "settings", "missing"),
    [
        ("tcp:8118:interface=127.0.0.1", {}, ""),
        ("unix:/run/admin", {}, ""),
        ("tcp:8118", {}, "TLS .* and a token"),
        ("tcp:8118:interface=10.0.0.1", {"token_file": "t"}, "pass TLS"),
        ("tcp:8118", {"tls_certificate": "c"}, "pass a token"),
        ("ssl:8118:privateKey=k", {}, "pass a token"),
        ("ssl:8118:privateKey=k", {"token_file": "t"}, ""),
        ("tcp:8118", {"tls_certificate": "c", "token_file": "t"}, ""),
        ("systemd:domain=INET:name=admin", {}, "TLS .* and a token"),
    ],
)
def test_endpoint_off_loopback_requires_tls_and_a_token(endpoint: str, settings: dict[str, str], missing: str) -> None:
    made = AdminSettings(**settings)
    if not missing:
        check_place(endpoint, made)
        return
    with pytest.raises(ConfigError, match=missing):
        check_place(endpoint, made)


def test_token_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123\nsomething else\n")
    assert read_token(str(path), TOKEN_FILE) == "0123456789abcdef0123"
    assert read_token("", TOKEN_FILE) is None


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40])
def test_unusable_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="token"):
        read_token(str(path), TOKEN_FILE)


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read admin.token-file"):
        read_token(str(tmp_path / "none"), TOKEN_FILE)
