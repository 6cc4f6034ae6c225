"""Tokens in files and in requests; test_server.py tests headers of browsers and the comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.web.tokens import SHORTEST_TOKEN, authorization, read_token, same, token_in


@pytest.mark.parametrize("token", ["x" * SHORTEST_TOKEN, "tök€n tök€n tök€n"])
def test_server_reads_the_token_that_a_client_sends(token: str) -> None:
    authorization(token).encode("latin-1")  # http.client takes nothing else
    assert same(token_in(authorization(token)), token)


@pytest.mark.parametrize("size", [SHORTEST_TOKEN - 1, SHORTEST_TOKEN, SHORTEST_TOKEN + 1])
def test_token_file_shorter_than_the_minimum_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "token"
    path.write_text("  " + "x" * size + "\nanother line\n")
    if size < SHORTEST_TOKEN:
        with pytest.raises(ConfigError, match=f"has {size} characters, expected at least 16"):
            read_token(str(path), "--token-file")
    else:
        assert read_token(str(path), "--token-file") == "x" * size


@pytest.mark.parametrize("content", [b"", b"\xff" * 40])
def test_token_file_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="token"):
        read_token(str(path), "--token-file")


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read --token-file"):
        read_token(str(tmp_path / "none"), "--token-file")
    assert read_token("", "--token-file") is None
