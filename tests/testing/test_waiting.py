"""Waiting for something to happen."""

from __future__ import annotations

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from fyrehose.testing import until


def test_until_returns_when_the_condition_is_true() -> None:
    clock, held = Clock(), [False, False]
    waiting = ensureDeferred(until(clock, held.pop))
    clock.advance(0.01)
    assert not waiting.called
    held.append(True)
    clock.advance(0.01)
    assert waiting.called
    assert waiting.result is None


def test_until_names_a_condition_without_source() -> None:
    clock = Clock()
    waiting = ensureDeferred(until(clock, [True].clear, patience=2))
    clock.pump([1.0] * 3)
    with pytest.raises(AssertionError, match="not within 2 s: <built-in method clear"):
        raise waiting.result.value  # type: ignore[union-attr]
    waiting.addErrback(lambda failure: None)


def test_until_raises_after_the_timeout() -> None:
    clock = Clock()
    waiting = ensureDeferred(until(clock, lambda: False, patience=2))
    clock.pump([1.0, 0.9])
    assert not waiting.called
    clock.advance(0.2)
    with pytest.raises(AssertionError, match=r"not within 2 s: .*until\(clock, lambda: False, patience=2\)"):
        raise waiting.result.value  # type: ignore[union-attr]
    waiting.addErrback(lambda failure: None)
