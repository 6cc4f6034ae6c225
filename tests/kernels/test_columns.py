"""The kernel of runs: how many records fit into a number of bytes, native and pure."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.kernels.pure import columns as pure
from fyrehose.kernels.pure import figg
from fyrehose.records import MAX_NAME
from tests.doubles.kernels import column, native_kernel

native = native_kernel("columns")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

ALL = (1 << 64) - 1


@pytest.mark.parametrize(
    ("start", "stop", "most", "found"),
    [
        (0, 4, ALL, (4, 60)),
        (0, 4, 60, (4, 60)),
        (0, 4, 59, (3, 30)),
        (0, 4, 29, (1, 10)),
        (0, 4, 9, (0, 0)),
        (1, 3, ALL, (3, 20)),
        (2, 2, ALL, (2, 0)),
        (4, 4, 0, (4, 0)),
    ],
)
def test_span_ends_before_the_limit(
    kernel: ModuleType, start: int, stop: int, most: int, found: tuple[int, int]
) -> None:
    assert kernel.span(column(10, 20, 0, 30), start, stop, most) == found


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 3), (2, 1), (3, 3)])
def test_missing_records_are_refused(kernel: ModuleType, start: int, stop: int) -> None:
    with pytest.raises(IndexError):
        kernel.span(column(1, 2), start, stop, ALL)


def test_invalid_columns_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(TypeError):
        kernel.span(b"12345", 0, 1, ALL)


@only_native
@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_native_span_equals_pure_span(lengths: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    most = data.draw(st.sampled_from([0, sum(lengths), ALL]) | st.integers(0, sum(lengths) + 1))
    for view in (bytes, memoryview, bytearray):
        found = native.span(view(column(*lengths)), start, stop, most)
        assert found == pure.span(view(column(*lengths)), start, stop, most)


def test_figg_topic_limit_equals_the_stream_name_limit() -> None:
    """Kernels do not import fyrehose.records, so the limit is defined twice."""
    assert figg.MAX_TOPIC == MAX_NAME
