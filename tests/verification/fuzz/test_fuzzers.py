"""Run each decoder of the fuzzers with its kept inputs and 60 random ones; `make fuzz` runs them for long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

fuzz, harness = import_module("fuzz"), import_module("harness")
DECODERS = [(fuzzer, name, decoder) for fuzzer in fuzz.FUZZERS for name, decoder in fuzz.decoders_of(fuzzer).items()]


@pytest.mark.parametrize(
    ("fuzzer", "name", "decoder"), DECODERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_fuzzer_accepts_a_few_inputs(
    fuzzer: str, name: str, decoder: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"fuzz_{fuzzer}")
    if fuzzer == "journal":
        monkeypatch.setattr(module, "DIRECTORY", tmp_path)
        monkeypatch.setattr(module, "JOURNAL", tmp_path / "journal")
    kept = [path.read_bytes() for path in sorted((fuzz.CORPUS / f"{fuzzer}-{name}").glob("*"))]
    assert kept, "the decoder has no kept inputs"
    for data in kept:
        decoder(data)
    random = Random(7)
    for _ in range(60):
        decoder(fuzz.random_input(random, kept))


def test_decisions_are_0_when_the_input_is_used_up() -> None:
    dice = harness.Dice(b"\xff" * 40)
    for _ in range(100):
        dice.number(48)
        dice.blob()
        dice.damaged(b"abc")
    assert not dice
    assert dice.number(48) == 0
    assert (dice.blob(), dice.damaged(b"abc"), dice.pieces(b"abc")) == (b"", b"abc", [b"abc"])
