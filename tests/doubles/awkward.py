"""Awkward values that each way in, each record and each option of the server is fed; see test_awkward.py.

A value is refused, or arrives as it was sent: nothing of it vanishes, and two values stay two.
"""

from __future__ import annotations

from fyrehose.records import MAX_NAME

#: Texts that UTF-8 can encode, in 1 to MAX_NAME bytes.
NAMES = (
    "x",
    "x" * MAX_NAME,
    "\u00fc" * (MAX_NAME // 2),
    "\U0001f600" * (MAX_NAME // 4),
    " ",
    " x ",
    "a/b",
    "a.b.c.d",
    "a..b",
    "*",
    "?x=1&y#z",
    "%41%FF",
    "a+b",
    "a@7",
    '"',
    "\\",
    "\\u0041",
    "a,b",
    "{a.b}",
    "null",
    "\x00",
    "\n",
    "\x1b[31m",
    "\x85\u2028",
    "\ufeff",
    "\ufffd",
    "e\u0301",
    "\u00e9",
)
#: Texts that are one character or one byte too long for a name.
TOO_LONG = ("x" * (MAX_NAME + 1), "\u00fc" * (MAX_NAME // 2 + 1), "\U0001f600" * MAX_NAME)
#: Texts that UTF-8 cannot encode: halves of surrogate pairs, and what Python makes of bytes that are not UTF-8.
SURROGATES = ("\ud800", "a\udc00b", "\udc00\ud800", "\udcff", "x" * (MAX_NAME - 1) + "\ud800")
#: Bytes that are not UTF-8: alone, cut, too long for what they encode, a surrogate, beyond Unicode, UTF-16.
NOT_UTF8 = (b"\xff", b"\xfe", b"a\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfea\x00")
#: Keys that lead to a value in nested objects, the deepest last.
PATHS = (("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"), ("\u00fc", "x" * 60, "-", "@a", "0"))
#: Ranges of numbers: one in another, equal ends, side by side, with a hole, in any order.
RANGES = (
    ((1, 9), (3, 5)),
    ((3, 5), (1, 9)),
    ((1, 9), (1, 3), (7, 9)),
    ((1, 3), (4, 6)),
    ((1, 3), (5, 6)),
    ((5, 6), (1, 3), (2, 5)),
    ((2, 2), (1, 1), (4, 4), (2, 2)),
)
#: Numbers of JSON that integers, doubles, or Python's conversions do not hold.
NUMBERS = ("1e999", "-1e999", "1e-999", "-0.0", "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5_000, "0.1" + "3" * 900)
