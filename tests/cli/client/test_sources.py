"""What is published: every byte of it, a piece at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, maybeDeferred

from fyrehose.cli.client import sources
from fyrehose.cli.client.sources import CHUNK, Source, Unreadable, arguments, lines_of, whole_files
from fyrehose.records import MAX_PAYLOAD


def call(job: Callable[[], Any]) -> Deferred[Any]:
    return maybeDeferred(job)


def everything(source: Source) -> tuple[int, list[bytes]]:
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


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\r\n\ntwo\xff\x00", [b"one\r", b"", b"two\xff\x00"]),
        (b"\n", [b""]),
        (b"x" * (3 * CHUNK) + b"\ny", [b"x" * (3 * CHUNK), b"y"]),
    ],
    ids=["nothing", "one", "one-ended", "binary", "empty-line", "long-line"],
)
def test_each_line_is_a_message(content: bytes, lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert everything(lines_of([str(path)])) == (len(content), lines)
    assert lines_of([str(path)]).total == len(content)


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b""))), st.integers(1, 30))
def test_lines_do_not_depend_on_the_size_of_reads(lines: list[bytes], chunk: int) -> None:
    """Read the same content in pieces of every size; text after the last line feed is a line of its own."""
    data = b"".join(line + b"\n" for line in lines)
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", chunk)
        patch.setattr(sources, "_open", lambda path: read)
        patch.setattr(sources, "_total", lambda paths: None)
        assert everything(lines_of(["pipe"]))[1] == lines


def test_last_line_without_line_feed_is_a_message_of_its_own(tmp_path: Path) -> None:
    for name, content in (("a", b"1\n2"), ("b", b"3\n")):
        tmp_path.joinpath(name).write_bytes(content)
    assert everything(lines_of([str(tmp_path / "a"), str(tmp_path / "b")])) == (5, [b"1", b"2", b"3"])


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
