"""A failed assertion on tuples says what is wrong."""

from __future__ import annotations

from typing import Any

import attrs
import pytest


@attrs.define
class Box:
    size: int = 2
    open: bool = False


def compare(box: Box, size: Any) -> None:
    assert (box.size, box.open, "x") == (size, True, "x")


def test_parts_that_differ_are_named_as_in_the_source() -> None:
    with pytest.raises(AssertionError) as failed:
        compare(Box(), 3)
    assert str(failed.value).splitlines()[:2] == [
        "assert box.size is 2, expected 3",
        "  box.open is False, expected True",
    ]
    with pytest.raises(AssertionError, match=r"^assert box\.open is False, expected True$"):
        compare(Box(), 2)


def both(box: Box, size: int) -> tuple[int, int]:
    found = (box.size, 1)
    assert found == (size, 1)
    return found


def test_parts_are_named_after_the_assertion_that_fails_and_not_after_its_caller() -> None:
    with pytest.raises(AssertionError, match="At index 0 diff: 2 != 3"):
        assert (both(Box(), 3), "x") == ((3, 1), "x")
    with pytest.raises(AssertionError, match=r"^assert sorted\(\{2, 1\}\) is \[1, 2\], expected \[2, 1\]$"):
        assert (
            "a text that is long enough for a line of its own",
            sorted({2, 1}),
        ) == (
            "a text that is long enough for a line of its own",
            [2, 1],
        )


def test_other_comparisons_are_explained_as_usual() -> None:
    found = (1, 2)
    with pytest.raises(AssertionError, match="At index 1 diff: 2 != 3"):
        assert found == (1, 3)
    with pytest.raises(AssertionError, match="Left contains one more item: 2"):
        assert (1, Box().size) == (1,)


def test_booleans_of_lists_are_named_too() -> None:
    boxes, found = [Box(), Box(open=True)], [True, False]
    with pytest.raises(
        AssertionError, match=r"^assert each\.open, where each is \[0\] of boxes, is False, expected True$"
    ):
        assert [each.open for each in boxes] == [True, True]
    with pytest.raises(AssertionError, match=r"^assert each > 2, where each is 3, is True, expected False$"):
        assert [each > 2 for each in (1, 3)] == [False, False]
    with pytest.raises(AssertionError, match=r"^assert found\[1\] is False, expected True$"):
        assert found == [True, True]
    with pytest.raises(AssertionError, match="At index 0 diff: 1 != 2"):
        assert [len(found) - 1] == [2], "numbers speak for themselves"
