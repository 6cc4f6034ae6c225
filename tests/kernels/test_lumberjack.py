"""The Lumberjack kernels: golden bytes, ends of scans, topics, and the native against the pure version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, product
from struct import pack
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fyrehose.kernels.pure import lumberjack as pure
from tests.doubles.kernels import column, native_kernel

native = native_kernel("lumberjack")
only_native = pytest.mark.skipif(native is None, reason="the native kernels are not built")

ONE, TWO = ord("1"), ord("2")
ALL = 1 << 40
BEAT = (b"@metadata", b"beat")


def wide(*sequences: int) -> bytes:
    return pack(f"<{len(sequences)}Q", *sequences)


def json_frame(sequence: int, document: bytes, version: bytes = b"2") -> bytes:
    return version + b"J" + pack(">II", sequence, len(document)) + document


def test_frames_match_their_golden_bytes(kernel: ModuleType) -> None:
    golden = bytes.fromhex("324a 00000001 00000002 7b7d 324a 00000002 00000000")
    assert kernel.frames(TWO, 1, column(2, 0), b"{}") == golden
    assert kernel.scan(golden, 0, TWO, ALL, ALL, 9) == (22, 2, 1, 2, column(2, 0), b"{}")
    assert kernel.frames(ONE, 0xFFFFFFFF, column(1, 1), b"ab") == bytes.fromhex(
        "314a ffffffff 00000001 61 314a 00000000 00000001 62"
    )
    assert kernel.frames(ONE, 7, b"", b"") == b""
    assert kernel.frames(0, 0, column(0), b"") == b"\0J" + bytes(8)
    assert kernel.frames(255, 0xFFFFFFFF, column(0), b"") == b"\xffJ" + b"\xff" * 4 + bytes(4)


#: Bytes at which scan() stops, if version 2 is wanted and documents have 20 bytes at most.
OTHER = [
    json_frame(3, b"v", b"1"),
    b"2D" + json_frame(3, b"v")[2:],
    json_frame(3, bytes(21)),
    json_frame(3, b"cut")[:-1],
    json_frame(3, b"")[:9],
    b"2J" + b"\xff" * 8,
    b"",
]
SENT = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 0xFFFFFFFE, 0xFFFFFFFF]), st.binary(max_size=20)), max_size=8)


@given(
    SENT | st.integers(0, 1 << 31).map(lambda n: [(n, b"a"), (n + 1, b"")]),
    st.sampled_from(OTHER),
    st.binary(max_size=2),
    st.sampled_from([0, 1, 19, 20, 21, ALL]),
    st.integers(0, 9),
)
@settings(max_examples=500, deadline=None)
def test_frames_are_scanned_as_a_model_of_single_frames_says(
    sent: list[tuple[int, bytes]], other: bytes, before: bytes, most: int, most_count: int
) -> None:
    taken: list[tuple[int, bytes]] = []
    for sequence, document in sent[:most_count]:
        if taken and sum(len(each) for _, each in taken) + len(document) > most:
            break
        taken.append((sequence, document))
    numbers = [sequence for sequence, _ in taken]
    consecutive = numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    lengths, payload = column(*(len(each) for _, each in taken)), b"".join(each for _, each in taken)
    said = wide(*numbers) if not consecutive else numbers[0] if numbers else 0
    end = len(before) + sum(len(json_frame(*each)) for each in taken)
    wire = before + b"".join(json_frame(*each) for each in sent) + other
    for kernel, kind in product((pure, native or pure), (bytes, bytearray)):
        found = kernel.scan(kind(wire), len(before), TWO, 20, most, most_count)
        assert found == (end, len(taken), said, numbers[-1] if numbers else 0, lengths, payload)
        if taken and consecutive:
            assert kernel.frames(TWO, numbers[0], lengths, payload) == wire[len(before) : end]


@pytest.mark.parametrize(
    ("version", "first", "lengths", "payload"),
    [
        (TWO, 1, b"123", b""),
        (TWO, 1, column(1), b""),
        (TWO, 1, column(1), b"ab"),
        (256, 1, b"", b""),
        (-1, 1, b"", b""),
        (TWO, 1 << 32, b"", b""),
        (TWO, -1, b"", b""),
    ],
)
def test_invalid_columns_are_refused(
    kernel: ModuleType, version: int, first: int, lengths: bytes, payload: bytes
) -> None:
    with pytest.raises(ValueError):
        kernel.frames(version, first, lengths, payload)


TOPICS = [
    (b'{"@timestamp":"2026-01-01","@metadata":{"beat":"filebeat","version":"8.0"},"message":"hi"}', b"filebeat"),
    (b' { "@metadata" : { "type":"_doc" , "beat" : "auditbeat" } }', b"auditbeat"),
    (b'{"a":[1,{"b":"}"},"]"],"c":{"d":{"e":1}},"n":-1.5e3,"t":true,"@metadata":{"beat":"x"}}', b"x"),
    (b'{"m":"a \\"quoted\\" \\\\","@metadata":{"beat":"\\u00fc"}}', b"\\u00fc"),
    (b'{"@metadata":{"beat":""}}', b""),
    (b'{"@metadata":{"beat":"first"},"@metadata":{"beat":"second"}}', b"first"),
    (b'{"@metadata":{"beat":7}}', None),
    (b'{"@metadata":{"beat":null}}', None),
    (b'{"@metadata":{"other":"x"},"beat":"y"}', None),
    (b'{"@metadata":"beat"}', None),
    (b'{"@metadata":["beat","x"]}', None),
    (b'["@metadata",{"beat":"x"}]', None),
    (b'{"@metadata"{"beat":"x"}}', None),
    (b'{"x" "@metadata":{"beat":"x"}}', None),
    (b'{,"@metadata":{"beat":"x"}}', None),
    (b'{"x":1]"@metadata":{"beat":"x"}}', None),
    (b'{"x\\":{"@metadata":{"beat":"x"}}', None),
    (b"{}", None),
    (b'{@metadata":{"beat":"x"}}', None),
    (b'{"@metadata":{x"beat":"y"}}', None),
    (b'{"@metadata":{"beat":x"y"}}', None),
    (b'"@metadata"', None),
    (b"\xff\xfe", None),
]


@pytest.mark.parametrize(("document", "topic"), TOPICS)
def test_topic_is_found_at_its_path(kernel: ModuleType, document: bytes, topic: bytes | None) -> None:
    assert kernel.find(document, BEAT) == topic


def test_topic_is_found_however_late_it_is(kernel: ModuleType) -> None:
    document = b'{"m":"' + b"\\tx" * 10_000 + b'","beat":"late"}'
    lengths = column(len(document))
    assert kernel.split(lengths, document, ((b"beat",),)) == [(1, (b"late",), True)]
    assert kernel.split(lengths, document, ()) == [(1, (), True)]
    assert kernel.find(document, ()) is None


def test_split_ends_a_segment_where_the_topic_changes_or_what_is_json(kernel: ModuleType) -> None:
    documents = [b'{"t":"a"}', b'{"t":"a","x":1}', b'{"t":"b"}', b'{"t":""}', b"{}", b"", b"nonsense", b'{"t":"a"}']
    lengths = column(*map(len, documents))
    assert kernel.split(lengths, b"".join(documents), ((b"t",),)) == [
        (2, (b"a",), True),
        (1, (b"b",), True),
        (1, (b"",), True),
        (1, (None,), True),
        (2, (None,), False),
        (1, (b"a",), True),
    ]
    assert kernel.split(b"", b"", ((b"t",),)) == []


def test_split_ends_a_segment_where_any_of_several_strings_changes(kernel: ModuleType) -> None:
    documents = [b'{"a":"1","b":{"c":"2"}}', b'{"b":{"c":"2"},"a":"1"}', b'{"a":"1","b":{"c":"3"}}', b'{"a":"1"}']
    paths = ((b"a",), (b"b", b"c"))
    assert kernel.split(column(*map(len, documents)), b"".join(documents), paths) == [
        (2, (b"1", b"2"), True),
        (1, (b"1", b"3"), True),
        (1, (b"1", None), True),
    ]


def test_split_searches_a_limited_number_of_strings(kernel: ModuleType) -> None:
    lengths = column(2)
    assert kernel.split(lengths, b"{}", ((b"a",),) * pure.MOST_PATHS) == [(1, (None,) * pure.MOST_PATHS, True)]
    with pytest.raises(ValueError, match="too many paths"):
        kernel.split(lengths, b"{}", ((b"a",),) * (pure.MOST_PATHS + 1))


def test_documents_are_classified_by_their_strings_and_scattered_in_order(kernel: ModuleType) -> None:
    documents = [b'{"t":"a"}', b'{"t":"b"}', b'{"t":"a","x":1}', b"no JSON", b'{"t":"b"}', b""]
    lengths, payload = column(*map(len, documents)), b"".join(documents)
    classes, of = kernel.classify(lengths, payload, ((b"t",),))
    assert (classes, of) == ([((b"a",), True), ((b"b",), True), ((None,), False)], bytes([0, 1, 0, 2, 1, 2]))
    for sequences, numbers in ((7, range(7, 13)), (pack("<6Q", 5, 4, 3, 2, 1, 1 << 63), (5, 4, 3, 2, 1, 1 << 63))):
        assert kernel.scatter(of, 4, sequences, lengths, payload) == [
            (
                len(mine),
                pack(f"<{len(mine)}Q", *(numbers[n] for n in mine)),
                column(*(len(documents[n]) for n in mine)),
                b"".join(documents[n] for n in mine),
            )
            for mine in ([0, 2], [1, 4], [3, 5], [])
        ]
    assert (kernel.classify(b"", b"", ((b"t",),)), kernel.scatter(b"", 0, 1, b"", b"")) == (([], b""), [])


def test_number_of_classes_is_limited(kernel: ModuleType) -> None:
    documents = [b'{"t":"%d"}' % n for n in range(pure.MOST_CLASSES + 1)]

    def classes(count: int) -> int:
        some = documents[:count]
        return len(kernel.classify(column(*map(len, some)), b"".join(some), ((b"t",),))[0])

    assert [classes(pure.MOST_CLASSES), classes(pure.MOST_CLASSES + 1)] == [pure.MOST_CLASSES, 0]
    with pytest.raises(ValueError, match="too many paths"):
        kernel.classify(b"", b"", ((b"a",),) * (pure.MOST_PATHS + 1))


@pytest.mark.parametrize(
    ("of", "parts", "sequences", "lengths", "payload"),
    [
        (b"\0", 1, 1, b"123", b""),
        (b"\0", 1, 1, column(1), b"ab"),
        (b"\0", 1, b"", column(1), b"a"),
        (b"\0", 1, bytes(9), column(1), b"a"),
        (b"\0\0", 1, 1, column(1), b"a"),
        (b"\1", 1, 1, column(1), b"a"),
        (b"\0", 257, 1, column(1), b"a"),
        (b"", -1, 1, b"", b""),
    ],
)
def test_columns_that_do_not_fit_together_are_not_scattered(
    kernel: ModuleType, of: bytes, parts: int, sequences: int | bytes, lengths: bytes, payload: bytes
) -> None:
    with pytest.raises(ValueError, match=r"add up|one valid part for each length"):
        kernel.scatter(of, parts, sequences, lengths, payload)


def is_json(kernel: ModuleType, document: bytes) -> bool:
    [(count, strings, found)] = kernel.split(column(len(document)), document, ())
    assert (count, strings) == (1, ())
    return bool(found)


@pytest.mark.parametrize(
    "document",
    [
        b'{ "x\\"" : [-1.5e3, {"y": "\\\\"}], "n":1,"@metadata":{"o":null, "beat":"x"}}',
        b'["[", [1 , true]]',
        b'"\\u00e9\\""',
    ],
)
def test_a_document_that_is_cut_is_no_json_and_has_no_topic(kernel: ModuleType, document: bytes) -> None:
    for cut in range(len(document)):
        assert not is_json(kernel, document[:cut]), cut
        assert kernel.find(document[:cut], BEAT) == (b"x" if b'"x"' in document[:cut] else None), cut
    assert is_json(kernel, document)


def parses(document: bytes) -> bool:
    """Return whether the module json parses *document*, without NaN and Infinity, which are not JSON."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    try:
        json.loads(document.decode(), parse_constant=refuse, parse_int=float)
    except ValueError:
        return False
    return True


def single(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


#: Bytes at the ends of the ranges that UTF-8 distinguishes: of a first byte, and of the ones that follow.
LEADS = single(b"\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff")
TRAILS = single(b'"x\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0')
TOKENS = [*single(b"{}[],: 1"), b'"a"', b'"a":']
QUOTES, ANY = [b'"', b'"12345678'], single(bytes(range(256)))
LITERALS = (b"true", b"false", b"null", b"NaN", b"-Infinity", b"0x10", b"{'a':1}", b"\xef\xbb\xbf{}", b"9" * 5_000)


def nearly_json() -> Iterator[bytes]:
    """Yield each short text of the bytes and tokens that matter to a parser."""
    families = (
        (ANY, [b"", b"1"]),
        (QUOTES, [b"", b"\\"], ANY, [b"", b"x"], [b'"']),
        (QUOTES, [b"\\u"], *[single(b'0dFg"')] * 4, [b'"']),
        (QUOTES, LEADS, TRAILS, [b'"']),
        (QUOTES, LEADS, TRAILS, TRAILS, [b'"']),
        ([b'"'], LEADS[11:], TRAILS, TRAILS, TRAILS, [b'"']),
        [single(b"-+01.eE ")] * 4,
        [TOKENS] * 4,
        *((first, *[TOKENS] * 3, last) for first, last in (([b"{"], [b"}"]), ([b"["], [b"]"]))),
        *(([each[:at]], [b"", *single(each)], [each[at + 1 :]]) for each in LITERALS[:-1] for at in range(len(each))),
    )
    yield from (b"", *LITERALS)
    for family in families:
        yield from map(b"".join, product(*family))


def test_short_texts_are_json_if_the_json_module_parses_them(kernel: ModuleType) -> None:
    wrong = [document for document in nearly_json() if is_json(kernel, document) != parses(document)]
    assert not wrong[:10]


#: Pieces of which random texts are made that are nearly JSON.
PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'{}[],:"1-0 \\\n\x1f'),
        *(b'"a"', b'{"k":', b'"12345678"', b".5", b"e+1", b"true", b"null", b"NaN", b"\\u12", b"ab"),
        *(b"\xc3\xa9", b"\xe2\x82", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"),
    ]
)


@given(st.lists(PIECES, max_size=14).map(b"".join) | st.binary(max_size=40))
@settings(max_examples=2_000)
def test_what_is_json_equals_what_the_json_module_parses(document: bytes) -> None:
    for kernel in (pure, native or pure):
        assert is_json(kernel, document) == parses(document)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=30),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    ),
    st.booleans(),
    st.integers(0, 300),
    st.binary(max_size=1),
)
@settings(max_examples=1_000)
def test_a_document_with_one_byte_changed_is_judged_as_by_the_json_module(
    value: object, escaped: bool, at: int, change: bytes
) -> None:
    document = json.dumps(value, ensure_ascii=escaped).encode()
    changed = document[:at] + change + document[at + 1 :]
    for kernel in (pure, native or pure):
        assert is_json(kernel, document)
        assert is_json(kernel, changed) == parses(changed)


#: Values whose JSON is ASCII without escapes, which the native kernel checks 64 bytes at a time.
ORDINARY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("az ,:{}[]", max_size=80),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab:, ", max_size=12), inner, max_size=4),
    max_leaves=20,
)


@given(
    ORDINARY,
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.integers(0, 70),
    st.integers(0, 400),
    st.sampled_from([bytes([byte]) for byte in b'"\\{}[]:, 1a\n\x1f\x7f\xc3'] + [b"", b'""', b"{}", b"tru"]),
)
@settings(max_examples=1_500, deadline=None)
def test_ordinary_documents_are_judged_as_by_the_json_module_wherever_blocks_end(
    value: object, separators: tuple[str, str], blanks: int, at: int, change: bytes
) -> None:
    document = b" " * blanks + json.dumps(value, separators=separators).encode()
    at %= len(document)
    for changed in (document[:at] + change + document[at + 1 :], document[:at], document[:at] + change + document[at:]):
        for kernel in (pure, native or pure):
            assert is_json(kernel, document)
            assert is_json(kernel, changed) == parses(changed), changed


@pytest.mark.parametrize("size", [*range(55, 75), 127, 128, 129])
def test_strings_and_numbers_may_cross_the_ends_of_blocks(kernel: ModuleType, size: int) -> None:
    for document in (b'"%s"' % (b"x" * size), b"1" * size, b"[" * 30 + b'"%s"' % (b" " * size) + b"]" * 30):
        assert is_json(kernel, document)
        assert is_json(kernel, document + b" ")
        assert not is_json(kernel, document[:-1] + b"{")
        assert not is_json(kernel, document + b"1 1")
        assert not is_json(kernel, document + b'"')


@pytest.mark.parametrize("depth", [62, 63, 64, 65, 511, 512, 513, 600])
@pytest.mark.parametrize("kinds", [["[]"], ["{}"], ["[]", "{}"], ["[]", "[]", "{}"]])
def test_nesting_is_followed_to_a_depth_of_512(kernel: ModuleType, depth: int, kinds: list[str]) -> None:
    begin, end = b"", b""
    for _, (opened, closed) in zip(range(depth), cycle(kinds), strict=False):
        begin, end = begin + (b'{"a":' if opened == "{" else b"["), closed.encode() + end
    assert is_json(kernel, begin + b"1" + end) == (depth <= 512)
    assert is_json(kernel, b'["' + begin.replace(b'"', b"") * 4 + b'"]'), "brackets in a string do not nest"
    assert is_json(kernel, b"[" + b"[]," * depth + b"{}]"), "brackets that are closed do not nest"
    other = b"}" if end.endswith(b"]") else b"]"
    assert not is_json(kernel, begin + b"1" + end[:-1] + other), "the last bracket closes another"


@pytest.mark.parametrize(("lengths", "payload"), [(b"123", b""), (column(1), b""), (column(1), b"ab")])
def test_columns_that_do_not_add_up_are_refused_by_split(kernel: ModuleType, lengths: bytes, payload: bytes) -> None:
    with pytest.raises(ValueError, match="add up"):
        kernel.split(lengths, payload, (BEAT,))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abé\\"), inner, max_size=3),
    max_leaves=12,
)


@given(value=st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3), indent=st.sampled_from([None, 1]))
@settings(max_examples=200, deadline=None)
def test_topic_equals_the_result_of_the_json_module(value: dict[str, object], indent: int | None) -> None:
    document = json.dumps(value, indent=indent).encode()
    inner = value.get("a")
    wanted = inner.get("b") if isinstance(inner, dict) else None
    found = (native or pure).find(document, (b"a", b"b"))
    assert (None if found is None else json.loads(b'"' + found + b'"')) == (wanted if isinstance(wanted, str) else None)


KEY = bytes(range(32))
FIELDS = (((b"id",), (b"log", b"offset")), ((b"@metadata", b"_id"),))
NOTHING = bytes(pure.FINGERPRINT)


def fingerprints(kernel: ModuleType, *documents: bytes, whole: bool = True, key: bytes = KEY) -> list[bytes]:
    found = kernel.fingerprints(column(*map(len, documents)), b"".join(documents), FIELDS, whole, key)
    return [found[at : at + pure.FINGERPRINT] for at in range(0, len(found), pure.FINGERPRINT)]


@pytest.mark.parametrize(
    ("document", "identified"),
    [
        (b'{"id":"a","log":{"offset":7}}', True),
        (b' { "log" : { "file":"x" , "offset" : -7.5e3 } , "id" : "" }', True),
        (b'{"id":"a","@metadata":{"_id":"b"}}', True),
        (b'{"@metadata":{"_id":0}}', True),
        (b'{"id":"a","log":{"offset":null}}', False),
        (b'{"id":"a","log":{"offset":[7]}}', False),
        (b'{"id":"a","log.offset":7}', False),
        (b'{"id":"a","log":{"offset":', False),
        (b'{"id":"a', False),
        (b"", False),
        (b"[]", False),
    ],
)
def test_document_has_an_identity_with_all_fields_of_an_alternative(
    kernel: ModuleType, document: bytes, identified: bool
) -> None:
    first, other, again = fingerprints(kernel, document, b"{}", document)
    assert (first == again, first != NOTHING, other) == (True, identified, NOTHING)


def test_order_of_members_and_blanks_do_not_change_a_fingerprint(kernel: ModuleType) -> None:
    one, *others = fingerprints(
        kernel,
        b'{"id":"a","log":{"offset":7,"x":[{"p":1,"q":2},2]}}',
        b'{ "log": {"x":[ {"q":2, "p":1}, 2], "offset":7}, "id":"a" }',
        b'{"log":{"offset":7,"x":[{"p":1,"q":2},2]},"id":"a"}',
    )
    assert others == [one, one]


@pytest.mark.parametrize(
    "other",
    [
        b'{"id":"a","log":{"offset":7,"x":[2,1]},"y":{}}',  # the order of a list
        b'{"id":"a","log":{"offset":7,"x":[1,2]},"y":[]}',
        b'{"id":"a","log":{"offset":7.0,"x":[1,2]},"y":{}}',  # a number, as it is written
        b'{"id":"a","log":{"offset":"7","x":[1,2]},"y":{}}',
        b'{"id":"a","log":{"offset":7,"x":[1,2]},"y":{},"y":{}}',  # a repeated key
        b'{"id":"a","log":{"offset":7,"x":[1,2],"y":{}}}',  # in another object
        b'{"id":"a","log":{"offset":7,"x":[12]},"y":{}}',
        b'{"id":"\\u0061","log":{"offset":7,"x":[1,2]},"y":{}}',  # an escape
        b'{"id":"a","log":{"offset":7,"x":[1,2]},"y":null}',
    ],
)
def test_any_other_difference_changes_a_fingerprint(kernel: ModuleType, other: bytes) -> None:
    one, another = fingerprints(kernel, b'{"id":"a","log":{"offset":7,"x":[1,2]},"y":{}}', other)
    assert NOTHING != one != another != NOTHING
    assert fingerprints(kernel, other, key=bytes(32)) != [another], "nobody can compute it without the key"


def test_members_that_change_places_between_equal_keys_change_a_fingerprint(kernel: ModuleType) -> None:
    one, two = fingerprints(
        kernel,
        b'{"@metadata":{"_id":1},"a":{"x":1},"a":{"y":2}}',
        b'{"@metadata":{"_id":1},"a":{"x":1,"y":2},"a":{}}',
    )
    assert one != two


def test_fields_alone_identify_documents_that_differ_elsewhere(kernel: ModuleType) -> None:
    documents = (
        b'{"id":"a","log":{"offset":7},"t":1}',
        b'{"t":2,"log":{"offset":7},"id":"a"}',
        b'{"id":"a","log":{"offset":8}}',
    )
    one, same, other = fingerprints(kernel, *documents, whole=False)
    assert one == same != other


def test_long_documents_have_fingerprints(kernel: ModuleType) -> None:
    parts = [b'"id":"a"', b'"log":{"offset":7}', b'"message":"' + b"x" * 200_000 + b'"']
    one, same = fingerprints(kernel, b"{" + b",".join(parts) + b"}", b"{" + b",".join(parts[::-1]) + b"}")
    assert one == same != NOTHING


def test_fingerprints_refuse_wrong_columns_and_paths(kernel: ModuleType) -> None:
    assert kernel.fingerprints(b"", b"", FIELDS, True, KEY) == b""
    for lengths, payload in [(column(3), b"{}"), (b"\2\0\0", b"{}")]:
        with pytest.raises(ValueError, match="lengths"):
            kernel.fingerprints(lengths, payload, FIELDS, True, KEY)
    for alternatives, key in [((), KEY), ((((b"a",),) * 9,), KEY), ((((b"a",) * 9,),), KEY), (FIELDS, b"short")]:
        with pytest.raises(ValueError, match=r"keys|paths"):
            kernel.fingerprints(column(2), b"{}", alternatives, True, key)


def test_table_returns_the_group_of_each_fingerprint_and_keeps_living_groups(kernel: ModuleType) -> None:
    found = [b"".join(fingerprints(kernel, *(b'{"@metadata":{"_id":%d}}' % n for n in some))) for some in ([1, 2], [3])]
    slots = bytearray(4 * pure.SLOT)
    assert kernel.recall(bytearray(), found[0]) == b""
    assert [kernel.remember(slots, each, group) for group, each in enumerate(found, 7)] == [2, 1]
    assert kernel.remember(slots, found[1] + NOTHING, 8) == 1
    assert kernel.recall(slots, found[1] + NOTHING + found[0]) == column(8, 0, 7, 7)
    assert kernel.recall(slots, b"".join(fingerprints(kernel, b'{"@metadata":{"_id":4}}'))) == b""
    target = bytearray(3 * pure.SLOT)
    kernel.retain(slots, target, column(0, 0, 0, 0, 0, 0, 0, 0, 8))
    assert kernel.recall(target, found[0] + found[1]) == column(0, 0, 8)
    kernel.remember(target, found[0][: pure.FINGERPRINT], 9)
    kernel.retain(slots, target, column(0, 0, 0, 0, 0, 0, 0, 7, 8))
    assert kernel.recall(target, found[0] + found[1]) == column(9, 7, 8), "a newer group keeps its fingerprint"
    with pytest.raises(IndexError):
        kernel.retain(slots, target, column(0))
    with pytest.raises(AssertionError, match="no free slot"):  # target has three slots, and three fingerprints
        kernel.remember(target, b"x" * pure.FINGERPRINT, 7)


#: Mostly valid frames, with some invalid ones among them.
PIECES = st.lists(
    st.builds(
        json_frame,
        st.integers(0, 3) | st.sampled_from([0xFFFFFFFF, 0]),
        st.binary(max_size=12) | st.sampled_from([b'{"t":"a"}', b'{"t":"b"}']),
        st.sampled_from([b"2", b"2", b"2", b"1"]),
    )
    | st.binary(max_size=3),
    max_size=8,
).map(b"".join)


@only_native
@given(PIECES, st.integers(0, 12), st.integers(0, 30), st.integers(0, 9))
@example(json_frame(1, b"x" * 20), 20, 0, 9)
@settings(max_examples=300, deadline=None)
def test_native_scan_equals_pure_scan(data: bytes, largest: int, most: int, most_count: int) -> None:
    wanted = pure.scan(data, 0, TWO, largest, most, most_count)
    assert native.scan(data, 0, TWO, largest, most, most_count) == wanted
    _, count, sequences, last, lengths, payload = wanted
    if count and isinstance(sequences, int):
        assert native.frames(TWO, sequences, lengths, payload) == data[: wanted[0]]
        assert last == sequences + count - 1


@only_native
@given(
    st.lists(
        st.text('{}[]":,\\ab ', max_size=30).map(str.encode)
        | st.binary(max_size=10)
        | st.text('x"\\', max_size=30).map(lambda text: b'{"%s":0,"a":"%s"}' % (text.encode(), text.encode())),
        max_size=6,
    ),
    st.lists(st.sampled_from([(), (b"a",), (b"a", b"b"), (b"",)]), max_size=3).map(tuple),
)
@settings(max_examples=500, deadline=None)
def test_native_split_equals_pure_split(documents: list[bytes], paths: tuple[tuple[bytes, ...], ...]) -> None:
    lengths, payload = column(*map(len, documents)), b"".join(documents)
    wanted = pure.split(lengths, payload, paths)
    assert native.split(lengths, payload, paths) == wanted
    classes, of = pure.classify(lengths, payload, paths)
    assert native.classify(lengths, payload, paths) == (classes, of)
    parted = pure.scatter(of, len(classes), 3, lengths, payload)
    assert native.scatter(of, len(classes), 3, lengths, payload) == parted
    assert sum(count for count, *_ in wanted) == len(documents)
    for document in documents:
        for path in paths:
            assert native.find(document, path) == pure.find(document, path)


@only_native
def test_package_uses_the_native_kernels_if_they_are_built() -> None:
    from fyrehose import kernels

    assert not kernels.NATIVE or kernels.lumberjack is native


KEYS = st.sampled_from(["a", "b", "ab", "", ":", "x" * 40, "\\u0061", "é"])
BLANKS = st.sampled_from(["", "", "", " ", "\n  ", " " * 70])
#: JSON texts, in which keys are repeated and objects are nested in lists.
TEXTS = st.recursive(
    st.sampled_from(
        ['"x"', '"a"', '""', "1", "-1.5e3", "null", "true", '"é"', '"\\n"', '"' + "y" * 70 + '"', "{}", "[]"]
    ),
    lambda values: (
        st.tuples(st.lists(st.tuples(KEYS, values), max_size=5), BLANKS, BLANKS).map(
            lambda made: (
                "{" + ",".join(f'{made[1]}"{key}"{made[2]}:{made[1]}{value}{made[2]}' for key, value in made[0]) + "}"
            )
        )
        | st.tuples(st.lists(values, max_size=3), BLANKS).map(
            lambda made: "[" + made[1] + ("," + made[1]).join(made[0]) + "]"
        )
    ),
    max_leaves=20,
)
PATHS = st.sampled_from(
    [(), (b"a",), (b"a", b"b"), (b"b", b"a"), (b"a", b"a", b"b"), (b"",), (b"", b"a"), (b":",), (b"x" * 40, b"a")]
) | st.sampled_from([(b'a":"x',), (b'a":{"b',), (b"a\\",), (b"a",) * 9, (b"a",) * 8])


@only_native
@given(st.lists(TEXTS, max_size=5), st.lists(PATHS, max_size=4).map(tuple))
@example(['{"a":{"x":1},"b":{"b":"late"}}'], ((b"a", b"b"),))
@example(['{"a":1,"a":{"b":"second"}}', '{"a":{"b":1,"b":"c"}}'], ((b"a", b"b"),))
@example(['{"a":[{"b":"c"}]}', '[{"a":{"b":"c"}}]'], ((b"a", b"b"), (b"b",)))
@example(['{"a":"x"}'], ((b"a",), (b'a":"x',)))
@settings(max_examples=1000, deadline=None)
def test_strings_of_json_texts_are_found_in_the_pass_that_checks_them(
    texts: list[str], paths: tuple[tuple[bytes, ...], ...]
) -> None:
    documents = [text.encode() for text in texts]
    lengths, payload = column(*map(len, documents)), b"".join(documents)
    wanted = pure.split(lengths, payload, paths)
    assert native.split(lengths, payload, paths) == wanted
    if len(paths) > 0 and all(len(path) <= pure.MOST_KEYS and b'"' not in b"".join(path) for path in paths):
        for whole in (True, False):
            alternatives = tuple((path,) for path in paths)
            made = [each.fingerprints(lengths, payload, alternatives, whole, KEY) for each in (pure, native)]
            assert made[0] == made[1]
    assert all(is_json for *_, is_json in wanted)
