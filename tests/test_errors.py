"""The tree of errors in the documentation matches the classes, and every exit status is documented for operators."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from weakref import ref

from fyrehose import errors
from fyrehose.errors import Broken, FyrehoseError, PublishError, RemoteProtocolError

OPERATING = Path(__file__).parents[1] / "docs" / "operating.md"


def drawn() -> list[tuple[int, str]]:
    """Return depth and name of each line of the tree in the module's docstring."""
    tree = (errors.__doc__ or "").partition("tree::\n\n")[2].partition("\n\n")[0]
    found = []
    for line in tree.splitlines():
        match = re.match(r"    ([ │├└─]*)(\w+)", line)
        assert match, line
        found.append((len(match[1]) // 4, match[2]))
    return found


def there(cls: type[FyrehoseError], depth: int = 0) -> list[tuple[int, str]]:
    found = [(depth, cls.__name__)]
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            found += there(child, depth + 1)
    return found


def test_the_documented_tree_matches_the_classes() -> None:
    assert sorted(drawn()) == sorted(there(FyrehoseError))
    assert drawn()[0] == (0, "FyrehoseError")
    parents: dict[int, str] = {}
    for depth, name in drawn():
        parents[depth] = name
        if depth:
            assert getattr(errors, name).__base__.__name__ == parents[depth - 1]


def test_every_exit_status_is_documented_for_operators() -> None:
    statuses = {getattr(errors, name).exit_status for _, name in drawn()}
    table = {int(status) for status in re.findall(r"^\| (\d) \| ", OPERATING.read_text(), re.MULTILINE)}
    assert table == statuses | {0}


def test_remote_protocol_error_has_a_cause_and_a_detail() -> None:
    error = RemoteProtocolError("frame-too-large", "4294967295 bytes")
    assert str(error) == "frame-too-large: 4294967295 bytes"
    assert error.cause == "frame-too-large"
    assert str(RemoteProtocolError("frame-too-large")) == "frame-too-large"
    assert Broken(error=error).error is error


def test_a_full_disk_and_a_full_table_of_keys_are_retriable() -> None:
    def all_of(cls: type[PublishError]) -> set[type[PublishError]]:
        return {cls}.union(*(all_of(child) for child in cls.__subclasses__() if child.__module__ == errors.__name__))

    assert {cls.__name__ for cls in all_of(PublishError) if cls.retriable} == {
        "ReadOnly",
        "Following",
        "Unreplicated",
        "NoRoomForKey",
    }


def test_a_broken_session_keeps_nothing_of_the_peer_alive() -> None:
    def break_it() -> Broken:
        buffer = Buffer(b"what the peer sent")
        kept.append(ref(buffer))
        try:
            try:
                int(buffer)
            except ValueError:
                raise RemoteProtocolError("rude") from None
        except RemoteProtocolError as error:
            return Broken(error=error)

    class Buffer(bytearray):
        """A bytearray that supports weak references."""

    kept: list[ref[Buffer]] = []
    gc.disable()  # the buffer must be freed by reference counts alone
    try:
        broken = break_it()
        assert kept[0]() is None
        assert broken.error.cause == "rude"
    finally:
        gc.enable()
