"""JSON that is written has no line ends for any reader, and JSON of peers has texts that can be written again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.jsontext import dumped, loaded, quoted

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner))


@given(st.text() | st.text("\x85\u2028\u2029\n\r\x0b\x1c é"))
def test_a_text_is_one_line_for_every_reader(text: str) -> None:
    for found in (quoted(text), dumped({text: text}).decode()):
        assert len(found.splitlines()) == 1
    assert json.loads(quoted(text)) == text
    assert json.loads(dumped({text: text})) == {text: text}


@given(VALUES)
def test_what_is_written_is_accepted(value: object) -> None:
    assert loaded(dumped(value)) == value
    assert loaded(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"\xff\xfe[\x00]\x00",
        b"NaN",
        b"[Infinity]",
        b"[" * 100_000,
        '"\ud800"'.encode("utf-8", "surrogatepass"),
        *(b"1e999", b'{"a": [-1e400]}'),
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="expected JSON in UTF-8"):
        loaded(data)


@pytest.mark.parametrize(
    "data", [rb'"\ud800"', rb'[{"why": "a\udc00b"}]', rb'{"\ud800": 1}', rb'"\udc00\ud800"', rb'"\uD800"']
)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is(data: bytes) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        loaded(data)
    assert loaded(rb'"\ud83d\ude00"') == "\U0001f600"
