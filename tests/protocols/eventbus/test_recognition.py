"""The dialect of subscribers, by the messages that an XPUB socket has for them."""

from __future__ import annotations

from itertools import permutations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fyrehose.errors import RemoteProtocolError
from fyrehose.protocols.eventbus import recognition
from fyrehose.protocols.eventbus.frames import Dialect, is_subtree
from fyrehose.protocols.eventbus.recognition import MARKS, RecognizedSubscribers, Resubscribed, unclear

BINARY, DECIMAL = Dialect.BINARY, Dialect.DECIMAL
NETWORK = "10.0.0.0/24"


@attrs.define
class Socket:
    """What a XPUB in manual mode does with subscriptions: the keys of each subscriber."""

    subscribers: RecognizedSubscribers
    keys: dict[int, set[bytes]] = attrs.field(factory=dict)

    def message(self, descriptor: int, message: bytes) -> None:
        change = self.subscribers.received(message, descriptor, NETWORK)
        keys = self.keys.setdefault(descriptor, set())
        keys -= {*change.removed}
        keys |= {*change.added}

    def subscribe(self, descriptor: int, *prefixes: bytes) -> None:
        for prefix in prefixes:
            self.message(descriptor, b"\1" + prefix)

    def passes(self, descriptor: int, dialect: Dialect, topic: bytes) -> bool:
        """Return whether an event of *topic* in *dialect* is passed to the subscriber; not for empty topics."""
        key = topic if dialect is self.subscribers.usual else self.subscribers.key_of(topic)
        return any(key.startswith(each) for each in self.keys.get(descriptor, ()))

    def dialects(self, descriptor: int, topic: bytes) -> list[Dialect]:
        return [dialect for dialect in Dialect if self.passes(descriptor, dialect, topic)]


def socket(usual: Dialect = BINARY) -> Socket:
    return Socket(RecognizedSubscribers(usual))


@pytest.mark.parametrize(
    ("prefixes", "dialect"),
    [
        ([b"/a/"], BINARY),
        ([b"/a/", b"/b/c/"], BINARY),
        ([b""], BINARY),
        ([b"/"], BINARY),
        ([b"/a"], DECIMAL),
        ([b"a/"], DECIMAL),
        ([b"a"], DECIMAL),
        ([b"/a/", b"/b"], DECIMAL),
        ([b"", b"/b"], DECIMAL),
        ([b"/a", b"\0binary"], BINARY),
        ([b"/a/", b"\0decimal"], DECIMAL),
        ([b"", b"\0decimal"], DECIMAL),
    ],
)
def test_dialect_is_recognized_by_subscriptions_in_any_order(prefixes: list[bytes], dialect: Dialect) -> None:
    for order in permutations(prefixes):
        one = socket()
        one.subscribe(7, *order)
        assert one.subscribers.dialect(7) is dialect
        for prefix in {*prefixes} - {*MARKS}:
            assert one.dialects(7, prefix + b"x") == [dialect]


def test_keys_match_their_golden_bytes() -> None:
    subscribers = RecognizedSubscribers(BINARY)
    assert subscribers.received(b"\1/a/", 7, NETWORK) == Resubscribed((b"/a/",))
    assert subscribers.received(b"\1/b", 7, NETWORK) == Resubscribed((b"\xffa/", b"\xffb"), (b"/a/",))
    assert subscribers.received(b"\1", 7, NETWORK) == Resubscribed((b"\xff",))
    assert subscribers.received(b"\0/b", 7, NETWORK) == Resubscribed((), (b"\xffb",))
    assert subscribers.key_of(b"/a/") == b"\xffa/"
    everything = RecognizedSubscribers(BINARY).received(b"\1", 8, NETWORK)
    assert everything.added[:2] == (b"\x00", b"\x01")
    assert everything.added[-1] == b"\xf4"
    assert not {bytes((byte,)) for byte in (0x80, 0xC1, 0xF5, 0xFF)} & {*everything.added}


def test_usual_dialect_is_that_of_the_option() -> None:
    one = socket(DECIMAL)
    one.subscribe(7, b"/a/")
    one.subscribe(8, b"/a/", b"\0binary")
    assert one.dialects(7, b"/a/") == [DECIMAL]
    assert one.dialects(8, b"/a/") == [BINARY]
    assert one.subscribers.others == 1


def test_first_subscription_that_names_a_dialect_decides() -> None:
    one = socket()
    one.subscribe(7, b"/a/", b"\0decimal", b"\0binary")
    assert one.subscribers.dialect(7) is DECIMAL
    one.message(7, b"\0\0decimal")
    assert one.subscribers.dialect(7) is DECIMAL


def test_ending_a_subscription_keeps_others_with_the_same_key() -> None:
    one = socket()
    one.subscribe(7, b"/a", b"xa")
    one.message(7, b"\0xa")
    assert one.passes(7, DECIMAL, b"/a")
    one.message(7, b"\0xa")
    assert one.passes(7, DECIMAL, b"/a"), "it had ended already"
    one.message(7, b"\0/a")
    assert not one.passes(7, DECIMAL, b"/a")
    two = socket()
    two.subscribe(7, b"", b"/")
    two.message(7, b"\0")
    assert two.passes(7, BINARY, b"/a/")
    assert not two.passes(7, BINARY, b"z")


def test_subscriber_that_left_is_forgotten() -> None:
    one = socket()
    one.subscribe(7, b"/a", b"/b/")
    assert (one.subscribers.others, one.subscribers.memory.used > 0) == (1, True)
    one.subscribers.left(7)
    assert (one.subscribers.others, one.subscribers.memory.used) == (0, 0)
    assert one.subscribers.dialect(7) is BINARY


def test_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "MOST", 3)
    one = socket()
    one.subscribe(7, b"/a/", b"/b/", b"/c/", b"/a/")
    with pytest.raises(RemoteProtocolError, match="too-many-subscriptions"):
        one.subscribe(7, b"/d/")


def test_subscriptions_of_one_network_take_at_most_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "MEMORY", 8 << 10)
    subscribers = RecognizedSubscribers(BINARY)
    for n in range(7):
        subscribers.received(b"\1/%d/" % n, n, NETWORK)
    with pytest.raises(RemoteProtocolError, match="too-many-subscriptions"):
        subscribers.received(b"\1/7/", 7, NETWORK)
    assert subscribers.memory.used <= 4 << 10
    subscribers.received(b"\1/a/", 1_000, "192.0.2.0/24")


def test_subscriptions_that_both_dialects_use_leave_the_dialect_unknown() -> None:
    assert unclear([])
    assert unclear([b"/a/"])
    assert not unclear([b"/a/", b"/b"])


PREFIXES = st.sampled_from([b"", b"/", b"/a", b"/a/", b"/a/b", b"/b/", b"a", b"\xc3\xa9", *MARKS, b"\xff", b"\0"])
TOPICS = [b"/", b"/a", b"/a/", b"/a/b", b"/ax", b"/b/c", b"a", b"ab", b"z", "é".encode(), b"\0x"]


@given(st.sampled_from(Dialect), st.lists(st.tuples(st.integers(1, 3), st.booleans(), PREFIXES), max_size=30))
def test_subscribers_receive_their_topics_in_their_own_dialect_only(
    usual: Dialect, steps: list[tuple[int, bool, bytes]]
) -> None:
    """Compare with a model that keeps the prefixes, and finds the dialect in the history."""
    one = socket(usual)
    prefixes: dict[int, set[bytes]] = {1: set(), 2: set(), 3: set()}
    marks: dict[int, Dialect] = {}
    plain: set[int] = set()
    for descriptor, subscribes, prefix in steps:
        one.message(descriptor, (b"\1" if subscribes else b"\0") + prefix)
        if prefix in MARKS:
            if subscribes:
                marks.setdefault(descriptor, MARKS[prefix])
            continue
        (prefixes[descriptor].add if subscribes else prefixes[descriptor].discard)(prefix)
        if subscribes and not is_subtree(prefix) and descriptor not in marks:
            plain.add(descriptor)
    for descriptor, wanted in prefixes.items():
        dialect = marks.get(descriptor, DECIMAL if descriptor in plain else usual)
        assert one.subscribers.dialect(descriptor) is dialect
        for topic in TOPICS:
            found = one.dialects(descriptor, topic)
            assert {*found} <= {dialect}
            if topic.startswith(tuple(wanted)):
                assert found == [dialect]


def test_all_connections_of_one_address_may_subscribe_to_everything() -> None:
    """10,000 subscribers: more than have room beside the other connections of their clients."""
    subscribers = RecognizedSubscribers(BINARY)
    for descriptor in range(10_000):
        assert subscribers.received(b"\1", descriptor, NETWORK).added
