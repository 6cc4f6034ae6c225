"""``fyrehose token``: the tokens that it signs, and what it refuses."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fyrehose.broker.signed import grant_of
from fyrehose.cli.command import main
from fyrehose.identity import Action

KEY = "0123456789abcdef" * 4


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(f"{KEY}\n")
    return tmp_path / "key"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["token", "create", *words])


def test_a_token_grants_the_rights_until_the_token_expires(key: Path) -> None:
    rights = ("subscribe=logs.*", "publish=in", "subscribe=metrics")
    result = run("--key", str(key), *(word for each in rights for word in ("--rights", each)), "--expires", "1h")
    grant = grant_of(result.stdout.strip(), KEY.encode())
    assert grant is not None
    assert not grant.flaw
    assert abs(grant.expires - time.time() - 3600) < 60
    assert grant.covers(Action.SUBSCRIBE, "logs.web")
    assert grant.covers(Action.SUBSCRIBE, "metrics")
    assert grant.covers(Action.PUBLISH, "in")
    assert not grant.covers(Action.CONSUME, "in")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--rights", "read=a", "--expires", "1h"], "expected ACTION=PATTERN"),
        (["--rights", "subscibe=a", "--expires", "1h"], "did you mean subscribe?"),
        (["--rights", "subscribe=", "--expires", "1h"], "expected ACTION=PATTERN"),
        (["--rights", "subscribe=a", "--expires", "0"], "later than now"),
        (["--expires", "1h"], "Missing option '--rights'"),
        (["--rights", f"subscribe={'x' * 2000}", "--expires", "1h"], "expected at most 2048"),
    ],
)
def test_rights_that_no_token_can_grant_are_refused(key: Path, words: list[str], error: str) -> None:
    result = run("--key", str(key), *words)
    assert result.exit_code == 2
    assert error in result.output


def test_a_key_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    rights = ("--rights", "subscribe=a", "--expires", "1h")
    assert "cannot read the key" in run("--key", str(tmp_path / "none"), *rights).output
    (tmp_path / "short").write_text("abc")
    assert "openssl rand -hex 32" in run("--key", str(tmp_path / "short"), *rights).output
