"""Awkward values are refused with an error for people, or arrive as they were sent: ways in, records and options."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import pack
from typing import Any
from urllib.parse import quote

import pytest
from twisted.internet.task import Clock

from fyrehose import plugins
from fyrehose.broker.broker import Broker
from fyrehose.broker.once import Known
from fyrehose.broker.once import unpack as unpack_key
from fyrehose.broker.sequencer import Sequencer
from fyrehose.errors import ConfigError, InvalidName, LocalProtocolError, RemoteProtocolError
from fyrehose.identity import digest
from fyrehose.jsontext import loaded
from fyrehose.options import build, file_path, options_of, typed
from fyrehose.protocols.http.managing import settling
from fyrehose.protocols.lumberjack.columns import Columns
from fyrehose.protocols.relink import names as relink
from fyrehose.protocols.relink.frames import Terms
from fyrehose.records import MAX_NAME, Record, Run
from fyrehose.routes import Routes, routes
from fyrehose.server.config import ServerSettings
from fyrehose.spans import merged
from fyrehose.subscriptions.progress import SavedSubscription, SavedSubscriptions, SubscriptionOptions, pack_whole
from fyrehose.testing import MemoryJournal
from fyrehose.web.tokens import authorization, same, token_in
from tests.doubles.awkward import NAMES, NOT_UTF8, PATHS, RANGES, SURROGATES, TOO_LONG

TEXTS = (*NAMES, *TOO_LONG, *SURROGATES)
#: What a way in answers to a text that it refuses.
REFUSED = object()


def by_publish(field: str) -> Callable[[str], object]:
    def taken(text: str) -> object:
        broker = Broker(Clock(), MemoryJournal(), Sequencer())
        broker.open()
        fields: dict[str, Any] = {"stream": "s", "source": "t", field: text}
        found: list[Any] = []
        try:
            broker.publish([Run.of(fields.pop("stream"), [b"x"], **fields)]).addErrback(found.append)
        except InvalidName:
            return REFUSED
        if found:
            found[0].trap(InvalidName)
            return REFUSED
        (run,) = broker.read(text if field == "stream" else "s", 1, 100)
        return getattr(run, field)

    return taken


def by_settling(request: Callable[[str], dict[str, object]], arrived: Callable[[Any], str]) -> Callable[[str], object]:
    def taken(text: str) -> object:
        try:
            return arrived(settling(loaded(json.dumps(request(text)).encode())))
        except ValueError:
            return REFUSED

    return taken


def by_relink(text: str) -> object:
    try:
        return relink.parse(Terms(endpoint=relink.subscribe_name(text, 7))).stream
    except (LocalProtocolError, RemoteProtocolError):
        return REFUSED


def document(path: Sequence[str], value: object) -> bytes:
    """Return an event with *value* at *path*, besides decoys at each shorter path and behind it."""
    inner = json.dumps(value)
    for key in reversed(path):
        inner = json.dumps({"x": "decoy", key: 0, "y": {path[-1]: "decoy"}}, ensure_ascii=False).replace(
            ": 0,", f": {inner},"
        )
    return inner.encode()


def lumberjack_run(columns: Columns, event: bytes) -> Any:
    columns.add_json(1, 1, pack("<I", len(event)), event)
    (run,) = columns.take()
    return run


def by_topic(path: Sequence[str]) -> Callable[[str], object]:
    def taken(text: str) -> object:
        keys = tuple(key.encode() for key in path)
        topic = lumberjack_run(Columns((keys,)), document(path, text)).topic
        return REFUSED if topic is None else topic

    return taken


WAYS: dict[str, Callable[[str], object]] = {
    **{f"publish: {field}": by_publish(field) for field in ("stream", "source", "producer", "topic", "content_type")},
    "a result of a settling": by_settling(
        lambda text: {"done": [[1, "1.1"]], "publish": [{"stream": "s", "payload": text}]},
        lambda found: found.results[0].payload.decode(),
    ),
    "the stream of a result": by_settling(
        lambda text: {"done": [[1, "1.1"]], "publish": [{"stream": text, "payload": ""}]},
        lambda found: found.results[0].stream,
    ),
    "the stream of a settled record": by_settling(
        lambda text: {"done": [[text, 1, "1.1"]]}, lambda found: found.items[0].stream
    ),
    "why a record failed": by_settling(
        lambda text: {"failed": [[1, "1.1", {"why": text}]]}, lambda found: found.items[0].why
    ),
    "a consumer": by_settling(lambda text: {"consumer": text}, lambda found: found.consumer),
    "an endpoint of Relink": by_relink,
    **{f"a topic behind {len(path)} keys": by_topic(path) for path in PATHS},
}
#: Ways in where long names are refused, because other words share the room.
SHORTER = {"an endpoint of Relink"}
#: Ways in of labels, whose characters count, and of texts without a limit of their own.
LABELS = {f"publish: {field}" for field in ("producer", "topic", "content_type")}
ANY_LENGTH = {"a result of a settling", "the stream of a settled record"}


@pytest.mark.parametrize("way", WAYS)
def test_text_is_refused_or_arrives_as_it_was_sent(way: str) -> None:
    found = {text: WAYS[way](text) for text in TEXTS}
    changed = {text: came for text, came in found.items() if came not in (REFUSED, text)}
    assert not changed, f"{way} changes these texts"
    refused = [text for text, came in found.items() if came is REFUSED]
    accepted = [text for text in SURROGATES if text not in refused]
    assert not accepted, f"{way} accepts texts that UTF-8 cannot encode"
    long = [text for text in TOO_LONG if len(text if way in LABELS else text.encode()) > MAX_NAME]
    assert way in ANY_LENGTH or {*long} <= {*refused}, f"{way} accepts more than {MAX_NAME} bytes"
    names = {name for name in NAMES if way not in SHORTER or len(name.encode()) < MAX_NAME // 2}
    assert not names & {*refused}, f"{way} refuses valid names"


def topic_of(raw: bytes) -> object:
    return lumberjack_run(Columns(((b"t",),)), b'{"t":"' + raw + b'"}').topic


@pytest.mark.parametrize("raw", NOT_UTF8)
@pytest.mark.parametrize(
    "way",
    [
        lambda raw: loaded(b'"' + raw + b'"'),
        lambda raw: relink.parse(Terms(endpoint="publish:" + quote(raw))),
        topic_of,
    ],
    ids=["JSON", "an endpoint of Relink", "a topic of Lumberjack"],
)
def test_bytes_that_are_not_utf_8_become_no_text(way: Callable[[bytes], object], raw: bytes) -> None:
    try:
        found = way(raw)
    except UnicodeError:
        raise
    except (ValueError, RemoteProtocolError):
        found = None
    assert found is None, f"{raw!r} became {found!r}"


@pytest.mark.parametrize("path", PATHS, ids=len)
def test_route_of_lumberjack_finds_a_string_at_any_depth(path: tuple[str, ...]) -> None:
    chosen = Routes(routes("logs.{" + ".".join(path) + "}"))
    columns = Columns(((b"@topic",), *chosen.paths), lambda topic, strings: chosen.stream(strings, topic, None))
    assert lumberjack_run(columns, document(path, "web")).stream == "logs.web"
    for elsewhere in (path[:-1], (*path, "more"), ("other", *path)):
        event = document(elsewhere, "web") if elsewhere else b'"web"'
        assert lumberjack_run(columns, event).stream is None, f"a string at {elsewhere} is not at {path}"


def test_different_tokens_stay_different() -> None:
    texts = [*NAMES, *TOO_LONG, *(token_in(f"Bearer {each.decode('latin-1')}") or "" for each in NOT_UTF8)]
    assert len({digest(text) for text in texts}) == len({*texts})
    for one in texts:
        assert [other for other in texts if same(one, other)] == [one] * texts.count(one)


@pytest.mark.parametrize("text", [text for text in NAMES if text.strip() == text and "\n" not in text])
def test_token_arrives_in_a_header_as_it_was_sent(text: str) -> None:
    assert token_in(authorization(text)) == text


SETTINGS = {"server": ServerSettings, **{name: plugins.load(name).settings for name in plugins.names()}}


@pytest.mark.parametrize("scope", SETTINGS)
def test_option_is_refused_with_its_name_or_can_be_used(scope: str) -> None:
    """A text that UTF-8 cannot encode comes from a command line in another encoding; only paths may have it."""
    wrong: list[str] = []
    for field in options_of(SETTINGS[scope]):
        for text in TEXTS:
            try:
                build(SETTINGS[scope], scope, {field.name: text})
            except ConfigError as error:
                wrong += [] if typed(field.name) in str(error) else [f"{error}: it does not name {field.name}"]
            else:
                fits = field.metadata["convert"] is file_path or text not in SURROGATES
                wrong += [] if fits else [f"{field.name} accepts {text!r}"]
    assert not wrong


def record_of(payload: bytes) -> Record:
    (record,) = Run.of(".own", [payload], source="server").numbered(7, 0).records()
    return record


def key_record(text: str) -> object:
    known = Known((text, text), 1, "d", text, 7, 0)
    found = unpack_key(record_of(known.packed()), 0)
    return found is not None and (found.name, found.holder) == (known.name, known.holder)


def subscription_record(text: str) -> object:
    saved = SavedSubscription(SubscriptionOptions(stream=text, dead=text), owner=text)
    saved.progress(text).reach = 7
    found = SavedSubscriptions()
    (payload,) = pack_whole(text, 0, saved)
    found.apply(record_of(payload))
    return found.entries[text].packed().keys() == saved.packed().keys() and (
        found.entries[text].owner,
        found.entries[text].options,
        found.entries[text].progress(text).reach,
    ) == (text, saved.options, 7)


@pytest.mark.parametrize("stored", [key_record, subscription_record])
@pytest.mark.parametrize("text", NAMES)
def test_record_of_the_server_is_read_as_it_was_written(stored: Callable[[str], object], text: str) -> None:
    assert stored(text), f"a record with {text!r} is read as another one"


@pytest.mark.parametrize("ranges", RANGES)
def test_ranges_are_merged_into_the_same_numbers(ranges: tuple[tuple[int, int], ...]) -> None:
    numbers = {number for first, last in ranges for number in range(first, last + 1)}
    found = merged(ranges)
    assert {number for first, last in found for number in range(first, last + 1)} == numbers
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found)), f"{found} can be shorter"
