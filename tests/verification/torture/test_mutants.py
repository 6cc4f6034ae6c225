"""Check that the table of mutants fits the sources, because a mutant that cannot be planted proves nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parent))
mutants = import_module("mutants")


def test_every_mutant_of_the_table_can_be_planted() -> None:
    assert mutants.broken(mutants.MUTANTS) == []


def test_mutant_whose_pattern_is_gone_or_ambiguous_is_named() -> None:
    good = mutants.MUTANTS[0]
    gone = attrs.evolve(good, name="gone", old="this stands nowhere")
    ambiguous = attrs.evolve(good, name="ambiguous", old="self")
    elsewhere = attrs.evolve(good, name="elsewhere", file="fyrehose/no/such.py")
    found = mutants.broken([gone, good, ambiguous, elsewhere])
    assert [line.partition(":")[0] for line in found] == ["gone", "ambiguous", "elsewhere"]


def test_run_fails_and_lists_the_mutants_that_cannot_be_planted(capsys) -> None:  # type: ignore[no-untyped-def]
    gone = attrs.evolve(mutants.MUTANTS[0], name="gone", old="this stands nowhere")
    assert mutants.main([gone], []) == 1
    assert "gone: 'this stands nowhere' stands 0 times in fyrehose/journal/writer.py" in capsys.readouterr().out
