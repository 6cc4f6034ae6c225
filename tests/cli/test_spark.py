"""The command fyrehose-spark without a session; tests/spark/test_command.py runs it with one."""

from __future__ import annotations

from click.testing import CliRunner, Result

from fyrehose.cli.spark import main


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_help_is_printed_and_unknown_commands_are_refused() -> None:
    assert "archive" in run("--help").output
    for name in (
        "archive",
        "table",
        "tables",
        "dedup",
        "catalog",
        "gaps",
        "lost",
        "rates",
        "parse",
        "replay",
        "verify",
        "optimize",
        "delete",
    ):
        assert run(name, "--help").exit_code == 0
    assert run("--version").output.startswith("fyrehose ")
    assert run("archive", "j").exit_code == 2
    said = run("archive", "--every", "soon", "j", "l")
    assert said.exit_code == 2
    assert "'soon': expected a duration" in said.output
