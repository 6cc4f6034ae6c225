"""The kernel of a small commit, native and pure: its bytes, the order of its steps, and the step that failed."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fyrehose.journal import format as fmt
from fyrehose.journal import packing, scan
from fyrehose.journal.files import Files, SteppedFiles
from fyrehose.kernels.pure import commit as pure
from fyrehose.records import Buffer, Run
from tests.doubles.kernels import native_kernel

native = native_kernel("commit")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

NAMES = st.text(min_size=1, max_size=8)
OPTIONAL = st.none() | st.text(max_size=8)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    payloads = draw(st.lists(st.binary(max_size=40), max_size=5))
    count = len(payloads)
    column = draw(st.sampled_from((bytes, bytearray, memoryview)))
    run = Run.of(
        draw(NAMES),
        payloads,
        source=draw(NAMES),
        producer=draw(OPTIONAL),
        topic=draw(OPTIONAL),
        content_type=draw(OPTIONAL),
        producer_seq=draw(st.none() | st.integers(0, 2**64 - 1) | st.just(column(bytes(range(8)) * count))),
        event_ids=draw(st.none() | st.just(column(bytes(range(16)) * count))),
        event_times=draw(st.none() | st.just(column(bytes(range(8)) * count))),
        first_seq=draw(st.integers(1, 2**48 - 1)),
    )
    run.payload = column(bytes(run.payload))
    return run


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    fds: list[int] = []

    def open_it(name: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        fds.append(os.open(tmp_path / name, flags))
        return fds[-1]

    yield open_it
    for fd in fds:
        os.close(fd)


def committed(kernel: Any, segment: int, mark: int, of: list[Run], **changed: int) -> Any:
    numbers = {"position": 1 << 40, "durable": 1 << 39, "time": 7, "clock": -1, "chain": 0xDEADBEEF}
    numbers |= {"begin": 64, "inode": 2**64 - 1, "generation": 2**32 - 1} | changed
    return kernel.commit(segment, 64, mark, of, packing.names, *numbers.values())


RUN = Run.of("s", [b"one", b"two"], source="t", first_seq=5)


@given(st.lists(runs(), min_size=1, max_size=4), st.sampled_from([pure, native] if native else [pure]))
@settings(max_examples=300, deadline=None)
def test_bytes_are_those_of_the_format(of: list[Run], kernel: ModuleType) -> None:
    header, batch = packing.batch(
        fmt.Kind.RECORDS, of, position=1 << 40, durable=1 << 39, time=7, clock=-1, chain=0xDEADBEEF
    )
    segment, mark = os.memfd_create("segment"), os.memfd_create("mark")
    try:
        # A file of memory has no name, so the kernel stops before MARK.
        length, checksum, records, seconds, step, failed = committed(kernel, segment, mark, of)
        assert (length, checksum, records) == (header.length, header.checksum, header.records)
        assert (step, failed) == (kernel.UNLINKED, 0)
        assert 0 <= seconds < 60
        assert os.pread(segment, 1 << 20, 64) == batch
    finally:
        os.close(segment)
        os.close(mark)


def test_durable_mark_is_the_end_of_the_batch(kernel: ModuleType, opened: Any) -> None:
    segment, mark = opened("segment"), opened("mark")
    length, _, records, _, step, failed = committed(kernel, segment, mark, [RUN])
    assert (records, step, failed) == (2, kernel.DONE, 0)
    end = (1 << 40) + fmt.BATCH_HEADER.size + length
    assert os.pread(mark, 100, 0) == scan.pack_mark(end, 64, (2**64 - 1, 2**32 - 1))
    assert os.fstat(segment).st_size == 64 + fmt.BATCH_HEADER.size + length


def test_batch_of_the_kernel_is_read_back(kernel: ModuleType, opened: Any, tmp_path: Path) -> None:
    run = Run.of("s", [b"x" * 1000] * 100, source="t", topic="\N{SNOWMAN}", producer_seq=9, first_seq=1)
    segment = opened("segment")
    committed(kernel, segment, opened("mark"), [run], position=64, durable=0)
    data = os.pread(segment, 1 << 20, 64)
    header = fmt.BatchHeader.unpack(data, 64)
    header.check(data[64:])
    (read,) = fmt.runs(data[64:], header.time)
    assert (read.stream, read.topic, read.producer_seq, read.first_seq, read.time) == ("s", "\N{SNOWMAN}", 9, 1, 7)
    assert [bytes(payload) for payload in read.payloads()] == [b"x" * 1000] * 100


@pytest.mark.parametrize(
    ("segment", "mark", "step", "failed"),
    [
        ("/dev/full", "mark", "WRITE", errno.ENOSPC),
        ("/dev/null", "mark", "SYNC", errno.EINVAL),
        ("segment", "/dev/full", "MARK", errno.ENOSPC),
    ],
)
def test_failed_step_is_reported(
    kernel: ModuleType, opened: Any, segment: str, mark: str, step: str, failed: int
) -> None:
    found = committed(kernel, opened(segment), opened(mark), [RUN])
    assert found[4:] == (getattr(kernel, step), failed)


@pytest.mark.parametrize("segment", ["/dev/full", "/dev/null"])
def test_durable_mark_is_not_written_unless_the_batch_is_synced(kernel: ModuleType, opened: Any, segment: str) -> None:
    mark = opened("mark")
    committed(kernel, opened(segment), mark, [RUN])
    assert os.fstat(mark).st_size == 0


def test_deleted_segment_is_noticed_before_the_mark_file_is_written(
    kernel: ModuleType, opened: Any, tmp_path: Path
) -> None:
    segment, mark = opened("segment"), opened("mark")
    (tmp_path / "segment").unlink()
    assert committed(kernel, segment, mark, [RUN])[4:] == (kernel.UNLINKED, 0)
    assert os.fstat(mark).st_size == 0


SHORT = """
import os, resource, sys
from importlib import import_module
from fyrehose.journal import packing
from fyrehose.records import Run
kernel = import_module(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
segment, mark = (os.open(name, os.O_RDWR | os.O_CREAT) for name in sys.argv[2:])
run = Run.of("s", [bytes(1000)], source="t", first_seq=1)
print(*kernel.commit(segment, 64, mark, [run], packing.names, 64, 0, 1, 1, 0, 0, 1, 1)[4:], os.fstat(segment).st_size)
"""


def test_short_write_is_continued_until_an_error(kernel: ModuleType, tmp_path: Path) -> None:
    """The file system writes a part, and the next call fails with the reason."""
    names = [str(tmp_path / "segment"), str(tmp_path / "mark")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY, "the test may lower it"
    found = subprocess.run(
        [sys.executable, "-c", SHORT, kernel.__name__, *names], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [str(kernel.WRITE), str(errno.EFBIG), "100"]


@only_native
def test_columns_that_have_grown_are_refused(opened: Any) -> None:
    """Only the native kernel allocates its memory before it copies the columns; the pure one accepts them."""
    run = Run.of("s", [b""], source="t", first_seq=1)
    run.payload = bytes(1000)
    segment = opened("segment")
    with pytest.raises(ValueError, match="larger than they were"):
        committed(native, segment, opened("mark"), [run])
    assert os.fstat(segment).st_size == 0


@only_native
def test_steps_have_the_same_numbers() -> None:
    for name in ("DONE", "WRITE", "SYNC", "UNLINKED", "MARK"):
        assert getattr(native, name) == getattr(pure, name)


def test_stepped_files_make_each_system_call_in_a_separate_method(opened: Any) -> None:
    calls: list[str] = []

    class Watched(SteppedFiles):
        def write(self, fd: int, data: Buffer, offset: int) -> None:
            calls.append(f"write {len(data)} at {offset}")
            super().write(fd, data, offset)

        def sync(self, fd: int) -> None:
            calls.append("sync")

    segment, mark = opened("segment"), opened("mark")
    for number in range(5_000):  # whatever the checksum is
        run = Run.of("s", [b"%d" % number], source="t", first_seq=1)
        found = committed(Watched(), segment, mark, [run])
        assert calls == [f"write {64 + found[0]} at 64", "sync", "write 36 at 0"]
        calls.clear()


@pytest.mark.parametrize("step", ["write", "sync", "is_linked"])
def test_double_whose_methods_the_kernel_would_bypass_is_refused(step: str) -> None:
    call: Callable[..., None] = lambda self, *arguments: None  # noqa: E731
    with pytest.raises(TypeError, match="derive it from SteppedFiles"):
        type("Double", (Files,), {step: call})
    type("Double", (SteppedFiles,), {step: call})
