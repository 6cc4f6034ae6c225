"""Test the command ``fyrehose forward`` without a server; tests/live/test_forward.py runs it with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fyrehose.cli.forward import forward
from fyrehose.errors import ConfigError, FyrehoseError

TABLE = '[[forward]]\nname = "n"\nstreams = "s"\nto = "lumberjack://127.0.0.1:5044"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forward.toml"
    path.write_text(TABLE)
    return path


def test_check_accepts_a_valid_file(config: Path) -> None:
    result = CliRunner().invoke(forward, [str(config), "--check"])
    assert (result.exit_code, result.output) == (0, "")


def test_mistake_is_reported(config: Path) -> None:
    config.write_text(TABLE + "linger = false\n")
    result = CliRunner().invoke(forward, [str(config), "--check"])
    assert isinstance(result.exception, ConfigError)
    assert "line 5, in [[forward]] table 1: linger is false; expected text in quotes, or a number" in str(
        result.exception
    )


def test_status_needs_metrics(config: Path) -> None:
    result = CliRunner().invoke(forward, [str(config), "--status"])
    assert isinstance(result.exception, ConfigError)
    assert "--status needs the metrics" in str(result.exception)


def test_status_of_a_process_that_does_not_run_is_an_error(config: Path) -> None:
    config.write_text('metrics = "127.0.0.1:1"\n' + TABLE)
    result = CliRunner().invoke(forward, [str(config), "--status"])
    assert isinstance(result.exception, FyrehoseError)
    assert str(result.exception) == ("no metrics at 127.0.0.1:1: Connection refused; is `fyrehose forward` running?")


def test_status_shows_the_metrics_of_a_file(config: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "forward.prom"
    config.write_text(f'metrics = "{metrics}"\n' + TABLE)
    labels = '{subscription="n",destination="lumberjack"'
    metrics.write_text(
        f"# TYPE fyrehose_forward_records counter\nfyrehose_forward_records_total{labels}}} 12\n"
        f'# TYPE fyrehose_forward_up gauge\nfyrehose_forward_up{labels},problem="no route"}} 0\n'
        '# TYPE other_lag gauge\nother_lag{subscription="s"} 7\n'
    )
    result = CliRunner(env={"COLUMNS": "160"}).invoke(forward, [str(config), "--status"])
    heads, row = result.output.splitlines()
    assert heads.split()[:2] == ["subscription", "destination"]
    assert row.split() == ["n", "lumberjack", "-", "-", "12", "-", "-", "-", "no", "route"]
