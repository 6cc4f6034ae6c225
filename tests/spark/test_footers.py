"""Statistics of files, as other programs may have shortened them."""

from __future__ import annotations

import pyarrow as pa

from fyrehose.spark.footers import CUT, bounds

TIMES = pa.timestamp("us", "UTC")


def test_upper_bound_of_a_whole_millisecond_may_have_been_cut() -> None:
    stated = pa.array([123_000, 123_456, 0, None], pa.int64())
    files = pa.table({"min.time": stated.cast(TIMES), "max.time": stated.cast(TIMES), "max.seq": stated})
    least, most = bounds(files, "time")
    assert least is not None
    assert most is not None
    assert least.cast(pa.int64()).to_pylist() == stated.to_pylist()
    assert most.cast(pa.int64()).to_pylist() == [123_000 + CUT, 123_456, CUT, None]
    assert bounds(files, "seq")[1] == pa.chunked_array([stated])
    assert bounds(files, "other") == (None, None)
