"""Requests about named subscriptions, sans-I/O: their paths and bodies.

    GET    /subscriptions               list those that the peer may see
    GET    /subscriptions/S             show one
    POST   /subscriptions/S/ack         {"seq": N}, and optionally "generation": move the position forward
    POST   /subscriptions/S/rewind      {"seq": N}, {"seq": "start"} or {"seq": "latest"}: set the position
           of a pattern                 {"positions": {"logs.a": N, ...}}
    DELETE /subscriptions/S             delete
    PUT, and POST /subscriptions/S/lease, settle, pause and redrive: see working.py

Each of these paths may begin with ``/streams/NAME``; the subscription must then be one to that stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from fyrehose.protocols.http.working import BODIES, Work
from fyrehose.records import LAST_SEQ
from fyrehose.web.session import RequestHead

#: The largest body of a request about named subscriptions, in bytes.
LARGEST = 64 << 10
#: The permitted methods of each path, by the last part of the path.
METHODS = {"": ("GET", "HEAD"), "S": ("GET", "HEAD", "PUT", "DELETE")}
METHODS |= dict.fromkeys(("ack", "rewind", "lease", "settle", "pause", "redrive"), ("POST",))


@attrs.frozen(slots=True, kw_only=True)
class Manage:
    """A request about named subscriptions: list, show, acknowledge, rewind or delete; or about a shared one.

    :ivar action: ``list``, ``show``, ``ack``, ``rewind`` or ``delete``; ``create``, ``lease``, ``settle``, ``pause``
        or ``redrive``
    :ivar name: the subscription; empty for a list
    :ivar stream: the stream in the path; None: there is none
    :ivar seq: the position, or for a pattern the position in each stream; None: the end of the stream
    :ivar generation: the generation that the consumer knows; None: any
    """

    request: RequestHead
    action: str
    name: str = ""
    stream: str | None = None
    seq: int | Mapping[str, int] | None = None
    generation: int | None = None
    #: the parsed body of a request about a shared subscription
    work: Work | None = None


def manage(request: RequestHead) -> Manage | None:
    """Return the event of *request*, without the fields of its body; None if its path is not about subscriptions."""
    path = request.path
    stream = None
    if path[0] == "streams" and len(path) > 2:
        stream, path = path[1], path[2:]
    if path[0] != "subscriptions" or len(path) > 3 or (len(path) == 3 and path[2] not in METHODS):
        return None
    name = path[1] if len(path) > 1 else ""
    plain = {"DELETE": "delete", "PUT": "create"}.get(request.method, "show") if name else "list"
    action = path[2] if len(path) == 3 else plain
    return Manage(request=request, action=action, name=name, stream=stream)


def allowed(event: Manage) -> tuple[str, ...]:
    """Return the methods that the path of *event* permits."""
    return METHODS["" if not event.name else event.action if event.action in METHODS else "S"]


def with_body(event: Manage, body: bytes) -> Manage:
    """Return *event* with the fields of its *body*.

    :raises ValueError: the body is invalid; the message says what is expected
    """
    if event.action in BODIES:
        return attrs.evolve(event, work=BODIES[event.action](_object(body)))
    expected = f'{{"seq": N}} with a number from 0 to {LAST_SEQ}, or {{"positions": {{"STREAM": N, ...}}}}'
    if event.action == "rewind":
        expected += ', or {"seq": "start"} or {"seq": "latest"}'
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.keys() - {"generation"} not in ({"seq"}, {"positions"}):
        raise ValueError(f"invalid body: expected {expected}")
    seq, generation, positions = fields.get("seq"), fields.get("generation"), fields.get("positions", {})
    if event.action == "rewind" and seq in ("start", "latest"):
        return attrs.evolve(event, seq=0 if seq == "start" else None)
    if "seq" in fields:
        positions = {"": seq}
    if not isinstance(positions, dict) or not all(map(_is_place, positions.values())):
        raise ValueError(f"invalid body: expected {expected}")
    if generation is not None and not _is_number(generation):
        raise ValueError("invalid generation: expected the number in the header Fyrehose-Generation")
    return attrs.evolve(event, seq=seq if "seq" in fields else positions, generation=generation)


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError("invalid body: expected a JSON object")
    return fields


def _is_place(value: object) -> bool:
    return isinstance(value, int) and _is_number(value) and 0 <= value <= LAST_SEQ


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
