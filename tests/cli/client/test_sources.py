"""What is published: every byte of it, a piece at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, maybeDeferred

from fyrehose.cli.client.sources import CHUNK, Call, Source, Unreadable, arguments, lines_of, whole_files
from fyrehose.records import MAX_PAYLOAD


def call(job: Callable[[], Any]) -> Deferred[Any]:
    return maybeDeferred(job)


def everything(source: Source, call: Call = call) -> tuple[int, list[bytes]]:
    """Return how many bytes *source* has read, and all its messages."""

    async def read() -> tuple[int, list[bytes]]:
        read, messages = 0, []
        async for size, batch in source.batches(call):
            read += size
            messages += batch
        return read, messages

    results: list[Any] = []
    Deferred.fromCoroutine(read()).addCallbacks(results.append, lambda failure: results.append(failure.value))
    if isinstance(results[0], Exception):
        raise results[0]
    result: tuple[int, list[bytes]] = results[0]
    return result


def test_arguments_are_bytes_as_the_shell_passed_them() -> None:
    source = arguments(["one", "wörld", os.fsdecode(b"\xff\x00x"), ""])
    assert everything(source) == (12, [b"one", "wörld".encode(), b"\xff\x00x", b""])
    assert source.total == 12


@given(st.lists(st.text("a\n\r\0\udcff").map(os.fsencode), min_size=1, max_size=4), st.integers(1, 9))
def test_each_line_of_any_files_is_a_message_whatever_the_reads_return(contents: list[bytes], size: int) -> None:
    """Each content is a pipe, into which a piece is written before each read; text at the end is a line, too."""
    pipes = [os.pipe() for _ in contents]
    writes = deque[tuple[int, bytes]]()
    for (_, fd), content in zip(pipes, contents, strict=True):
        writes += [(fd, content[at : at + size]) for at in range(0, len(content), size)] + [(fd, b"")]

    def write(job: Callable[[], Any]) -> Deferred[Any]:
        if writes:
            fd, piece = writes.popleft()
            os.write(fd, piece) if piece else os.close(fd)
        return call(job)

    lines = [line for content in contents for line in content.removesuffix(b"\n").split(b"\n") if content]
    source = lines_of([f"/dev/fd/{fd}" for fd, _ in pipes])
    assert everything(source, write) == (sum(map(len, contents)), lines)
    for fd, _ in pipes:
        os.close(fd)


def test_line_of_several_reads_is_one_message(tmp_path: Path) -> None:
    path, content = tmp_path / "file", b"x" * (3 * CHUNK) + b"\ny"
    path.write_bytes(content)
    assert everything(lines_of([str(path)])) == (len(content), content.split(b"\n"))
    assert lines_of([str(path), str(path)]).total == 2 * len(content)


def test_each_whole_file_is_a_message(tmp_path: Path) -> None:
    contents = [b"", b"one\ntwo\n", bytes(range(256)) * 1000]
    paths = []
    for n, content in enumerate(contents):
        paths.append(str(tmp_path / str(n)))
        Path(paths[-1]).write_bytes(content)
    source = whole_files(paths)
    assert everything(source) == (sum(map(len, contents)), contents)
    assert source.total == sum(map(len, contents))


def test_message_above_the_limit_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_PAYLOAD + 1)
    with pytest.raises(Unreadable, match="the limit of a message"):
        everything(whole_files([str(large)]))
    with pytest.raises(Unreadable, match="the limit of a message"):
        everything(lines_of([str(large)]))
    os.truncate(large, MAX_PAYLOAD)
    assert len(everything(whole_files([str(large)]))[1][0]) == MAX_PAYLOAD


@pytest.mark.parametrize("make", [lines_of, whole_files])
def test_unreadable_file_is_named(make: Any, tmp_path: Path) -> None:
    good, missing = tmp_path / "good", tmp_path / "missing"
    for path in (good, missing):
        path.write_text("a\n")
    source = make([str(missing)])
    missing.unlink()
    with pytest.raises(Unreadable, match=r"cannot read .*missing: No such file or directory"):
        everything(source)
    # Before anything of the others is published.
    with pytest.raises(Unreadable, match=r"cannot read .*missing: No such file or directory"):
        make([str(good), str(missing)])
    with pytest.raises(Unreadable, match="Is a directory"):
        make([str(good), str(tmp_path)])


def test_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(Unreadable, match=r"cannot read .*secret: Permission denied"):
        lines_of([str(path)])


def test_error_names_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    source = lines_of(["-"])
    monkeypatch.setattr(os, "read", lambda fd, size: os.close(-1))
    with pytest.raises(Unreadable, match=r"cannot read standard input: Bad file descriptor"):
        everything(source)


def test_total_of_a_pipe_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert lines_of([str(path)]).total is None
