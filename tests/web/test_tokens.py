"""Tokens: from a file into a request, and out of it (headers of browsers and comparison: test_server.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fyrehose.errors import ConfigError
from fyrehose.web.tokens import SHORTEST_TOKEN, authorization, read_token, same, token_in


@pytest.mark.parametrize("token", ["x" * SHORTEST_TOKEN, "tök€n tök€n tök€n"])
def test_what_a_client_sends_is_what_the_server_reads(token: str) -> None:
    authorization(token).encode("latin-1")  # http.client takes nothing else
    assert same(token_in(authorization(token)), token)


@pytest.mark.parametrize("size", [SHORTEST_TOKEN - 1, SHORTEST_TOKEN, SHORTEST_TOKEN + 1])
def test_the_shortest_token(tmp_path: Path, size: int) -> None:
    path = tmp_path / "token"
    path.write_text("  " + "x" * size + "\nanother line\n")
    if size < SHORTEST_TOKEN:
        with pytest.raises(ConfigError, match=f"has {size} characters, 16 are the least"):
            read_token(str(path), "--token-file")
    else:
        assert read_token(str(path), "--token-file") == "x" * size


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--token-file cannot be read"):
        read_token(str(tmp_path / "none"), "--token-file")
    assert read_token("", "--token-file") is None
