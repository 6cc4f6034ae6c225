"""Choose the stream of an event from strings in it, from its topic, or from the writer's certificate.

    logs.{fields.service}    a string of the event
    {topic}.{certificate}    its topic; the first name in the certificate that the writer has proved to own

The first route decides whose words in braces all have a value, and whose result is a valid name of a stream.  If there
is no such route, the event goes to the stream of the option ``stream``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs

from fyrehose.kernels.pure.lumberjack import MOST_PATHS
from fyrehose.records import MAX_NAME

#: Words in braces that do not name a field of the event.
TOPIC, CERTIFICATE = "topic", "certificate"
#: How many fields all routes together may have; each event is searched for each of them, and for the topic.
MOST_FIELDS = MOST_PATHS - 1
_PART = re.compile(r"\{([^{}]*)\}")
_EXPECTED = "streams with fields in braces, such as logs.{fields.service}"


@attrs.frozen(slots=False)
class Route:
    """A template of a stream's name.

    :ivar text: the template as the operator typed it
    """

    text: str

    def __str__(self) -> str:
        return self.text

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Return the pieces of the template: text and the words in braces, in turn."""
        return tuple(_PART.split(self.text))

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words in braces."""
        return self.parts[1::2]

    def stream(self, values: Mapping[str, str | None]) -> str | None:
        """Return the stream for the *values* of the words, or None if one is missing or the name would be invalid."""
        found = list(self.parts)
        for at in range(1, len(found), 2):
            value = values[found[at]]
            if not value:
                return None
            found[at] = value
        name = "".join(found)
        return name if not name.startswith(".") and 1 <= len(name.encode()) <= MAX_NAME else None


@attrs.frozen(slots=False)
class Routes:
    """The routes of a listener, in order."""

    routes: tuple[Route, ...] = ()

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of events that the routes need, as keys joined by dots."""
        words = dict.fromkeys(word for route in self.routes for word in route.words)
        return tuple(word for word in words if word not in (TOPIC, CERTIFICATE))

    @property
    def paths(self) -> tuple[tuple[bytes, ...], ...]:
        """Return the keys that lead to each of :attr:`fields`."""
        return tuple(tuple(key.encode() for key in field.split(".")) for field in self.fields)

    def stream(self, strings: Sequence[str | None], topic: str | None, certificate: str | None) -> str | None:
        """Return the stream of an event, or None if no route fits.

        :param strings: the event's strings at :attr:`paths`
        """
        values = {**dict(zip(self.fields, strings, strict=True)), TOPIC: topic, CERTIFICATE: certificate}
        return next(filter(None, (route.stream(values) for route in self.routes)), None)

    def miss(self, strings: Sequence[str | None], topic: str | None, certificate: str | None) -> str:
        """Return why no route fits an event, without any value of it, so that there are few such reasons."""
        values = {**dict(zip(self.fields, strings, strict=True)), TOPIC: topic, CERTIFICATE: certificate}
        missing = dict.fromkeys(word for route in self.routes for word in route.words if not values[word])
        return f"it has no {' and no '.join(missing)}" if missing else "the stream's name would be invalid"


def routes(text: str) -> tuple[Route, ...]:
    """Convert the text of the option ``routes``: templates, separated by commas."""
    made = tuple(Route(part.strip()) for part in text.split(",") if part.strip())
    for route in made:
        literal = "".join(route.parts[::2])
        if not route.words or not all(all(word.split(".")) for word in route.words) or "{" in literal or "}" in literal:
            raise ValueError(_EXPECTED)
        if route.text.startswith("."):
            raise ValueError(f"{_EXPECTED}; streams whose names begin with a dot belong to the server")
    if len(Routes(made).fields) > MOST_FIELDS:
        raise ValueError(f"{_EXPECTED}, and at most {MOST_FIELDS} different fields")
    return made
