"""Declare the options of a protocol as an attrs class, and build instances from text or TOML values.

``--option PROTOCOL.NAME=VALUE`` and a configuration file have the same result.  For example::

    @attrs.frozen(kw_only=True)
    class Settings:
        max_payload: int = option(16 << 20, size, "largest payload")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import inf
from pathlib import Path
from posixpath import join
from typing import Any, TypeVar

import attrs

from fyrehose.errors import ConfigError

T = TypeVar("T")
Network = IPv4Network | IPv6Network

_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])i?B?|B)?", re.IGNORECASE)
#: The beginning of times that are numbers.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The largest size, in bytes: larger than any file or disk.
LARGEST = 1 << 60
#: The longest duration, in seconds: a century, which every clock can count.
LONGEST = 36_500 * 86400
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, None: 1, "m": 60, "h": 3600, "d": 86400}


def option(
    default: Any, convert: Callable[[str], Any], about: str, least: int = 0, most: float = inf, above_zero: int = 0
) -> Any:
    """Return a field of a settings class, for one option.

    :param convert: converts text to the value; raises ValueError with a description of valid text, such as "a size"
    :param about: the line of help for this option
    :param least: the smallest valid value of a number
    :param most: the largest valid value of a number
    :param above_zero: the smallest size besides 0 that a user may set, because a smaller one lacks its unit; programs
        may set any
    """

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if not least <= value <= most:
            bound = f"at least {shown_value(field, least)}" if value < least else f"at most {most}"
            raise ValueError(f"{typed(field.name)} must be {bound}, not {shown_value(field, value)}")

    bounded = least or most != inf
    metadata = {"convert": convert, "help": about, "above_zero": above_zero}
    return attrs.field(default=default, validator=check if bounded else None, metadata=metadata)


def fixed(default: Any) -> Any:
    """Return a field of a settings class that is not an option, so that only programs and tests can set it."""
    return attrs.field(default=default)


def options_of(cls: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields of the settings class *cls* that are options."""
    return tuple(field for field in attrs.fields(cls) if "convert" in field.metadata)


def size(text: str) -> int:
    """Convert a size to bytes: ``4096``, ``64KiB``, ``16MiB``, ``1G`` (all in powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("a size, for example 65536, 64KiB or 16MiB")
    found = int(match[1]) << 10 * " KMGT".index((match[2] or " ").upper())
    if found > LARGEST:
        raise ValueError(f"a size of at most {LARGEST >> 40} TiB")
    return found


def shown_size(size: float) -> str:
    """Return *size*, in bytes, as people read it: ``512 bytes``, ``334.1 KiB``, ``64.0 MiB``, in powers of 1024."""
    if size < 1024:
        return f"{int(size)} byte{'' if int(size) == 1 else 's'}"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size /= 1024
        if size < 1024 or unit == "PiB":
            break
    return f"{size:,.1f} {unit}"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return *number* with its *noun*: ``1 batch``, ``4,898 batches``.

    :param nouns: the plural of *noun*; None: the noun and an s
    """
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def typed(name: str) -> str:
    """Return the name of an option as it is typed, with hyphens, for the *name* of its field or any spelling of it."""
    return name.replace("_", "-")


def shown_value(field: attrs.Attribute[Any], value: Any) -> str:
    """Return *value* as an operator would type it for the option, whose converter returns the same value again.

    :param field: the field of the option
    :return: for example ``16MiB``, ``30s``, ``yes`` or ``a,b``; empty for no value
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return _exact(value, _UNITS_OF_TIME) if value % 1 == 0 else _fraction(value)
    if field.metadata["convert"] is size:
        return exact_size(value)
    return str(value)


def exact_size(size: int) -> str:
    """Return *size*, in bytes, as it is typed: ``16MiB``, ``1000``."""
    return _exact(size, _UNITS_OF_SIZE)


#: Units of durations in seconds, from the largest to the smallest.
_UNITS_OF_TIME = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS_OF_SIZE = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "": 1}


def _exact(value: float, units: Mapping[str, int]) -> str:
    """Return *value* in the largest of *units* that divides it."""
    unit = next(name for name, each in units.items() if value % each == 0)
    return f"{int(value) // units[unit]}{unit}" if value else "0"


def _fraction(seconds: float) -> str:
    milliseconds = round(seconds * 1000, 6)
    return f"{milliseconds:g}ms" if seconds < 1 else f"{Decimal(repr(seconds)):f}s"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown *word*: ``; did you mean keep-age?``, or "" if no word is similar.

    :param known: the valid words; case, hyphens and underscores make no difference
    """
    spellings = {_spelling(each): each for each in known}
    nearest = get_close_matches(_spelling(word), spellings, 1, 0.7)
    return f"; did you mean {spellings[nearest[0]]}?" if nearest else ""


def _spelling(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def duration(text: str) -> float:
    """Convert a duration to seconds: ``30``, ``30s``, ``250ms``, ``5m``, ``12h``, ``7d``."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError("a duration, for example 30s, 250ms, 5m, 12h or 7d")
    found = float(match[1]) * _SECONDS[match[2]]
    if found > LONGEST:
        raise ValueError(f"a duration of at most {LONGEST // 86400} days")
    return found


def moment(text: str, now: float) -> int:
    """Convert a time to microseconds since 1970 UTC: ``2026-11-28T12:00``, in UTC unless it has a zone, or ``-1h``.

    :param now: the present time in seconds since 1970 UTC, from which a time that begins with a minus is counted back
    """
    try:
        if text.startswith("-") and not text.endswith(tuple("0123456789")):  # -1 is rather a number than a second
            return int((now - duration(text[1:])) * 1_000_000)
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time such as 2026-11-28T12:00 or -1h") from None
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def count(text: str) -> int:
    """Convert a whole number, zero or more."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number")
    return int(text)


def boolean(text: str) -> bool:
    """Convert ``yes`` or ``no``; ``true``, ``on`` and ``1``, ``false``, ``off`` and ``0`` are synonyms."""
    word = text.strip().lower()
    if word not in ("yes", "no", "true", "false", "on", "off", "1", "0"):
        raise ValueError("yes or no")
    return word in ("yes", "true", "on", "1")


def name(text: str) -> str:
    """Return *text* if it is a valid name: 1 to 255 bytes of UTF-8."""
    if not 1 <= len(text.encode()) <= 255:
        raise ValueError("a name of 1 to 255 bytes")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Return the converter of an option whose value is one of *words*."""

    def convert(text: str) -> str:
        if text not in words:
            raise ValueError(f"{', '.join(words[:-1])} or {words[-1]}{suggestion(text, words)}")
        return text

    return convert


@attrs.frozen
class FilePath:
    """A converter for an option that is the path of a file or a directory.

    :ivar words: values that are no paths
    """

    words: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        return text

    def within(self, folder: str, text: str) -> str:
        """Return the path *text*, resolved in *folder* if it is relative."""
        return text if not text or text in self.words else join(folder, text)


file_path = FilePath()


def files_of(settings: Any) -> dict[str, str]:
    """Return the paths of the files that the options of *settings* name, by option."""
    values, paths = attrs.asdict(settings, recurse=False), filter(_is_path, options_of(type(settings)))
    return {field.name: values[field.name] for field in paths if values[field.name]}


def _is_path(field: attrs.Attribute[Any]) -> bool:
    return isinstance(field.metadata["convert"], FilePath)


def within(folder: str, cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* of the settings class *cls*, with relative paths resolved in *folder*."""
    converters = {field.name: field.metadata["convert"] for field in options_of(cls)}
    return {
        name: converter.within(folder, value)
        if isinstance(converter := converters.get(name), FilePath) and isinstance(value, str)
        else value
        for name, value in values.items()
    }


def why_unreadable(error: OSError | UnicodeError) -> str:
    """Describe in a few words why a text file cannot be read."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text in UTF-8"


def secret_in(path: str | Path, option: str, kind: str = "token", least: int = 0) -> str:
    """Return the secret in the first line of the file at *path*.

    :param option: how the user named the file, for the error
    :param kind: what the secret is, for the error
    :param least: the least number of its characters
    :raises ConfigError: the file cannot be read, or the secret is too short, so that it could be guessed
    """
    try:
        secret = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {option} {path}: {why_unreadable(error)}") from error
    if len(secret) < least:
        raise ConfigError(
            f"the {kind} in {path} has {len(secret)} characters, expected at least {least}; create one with: "
            f"(umask 077; openssl rand -hex 32 > {path})"
        )
    return secret


def networks(text: str) -> tuple[Network, ...]:
    """Convert networks in CIDR notation, separated by commas."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("networks, for example 10.0.0.0/8,192.168.1.7/32") from None


def text_of(value: object) -> str:
    """Return the value of an option in a TOML file as it is typed on the command line, which is text.

    :raises ValueError: *value* is a table, or contains one
    """
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict | list) for each in value)):
        raise ValueError("text, a number, true or false, or a list of texts")
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def converted(field: attrs.Attribute[Any], text: str) -> Any:
    """Return the value of the option *field* that a user has typed as *text*.

    :raises ValueError: *text* is invalid; the message describes a valid one
    """
    convert = field.metadata["convert"]
    if not isinstance(convert, FilePath) and any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError("text in UTF-8")  # the command line has bytes of another encoding
    value = convert(text)
    above_zero = field.metadata["above_zero"]
    if above_zero and 0 < value < above_zero:
        raise ValueError(f"0, or at least {shown_value(field, above_zero)}; a number without a unit counts bytes")
    return value


def build(cls: type[T], protocol: str, values: Mapping[str, object]) -> T:
    """Return an instance of the settings class *cls*.

    :param protocol: the scope of the options, for error messages: a protocol, ``journal`` or ``server``
    :param values: texts from the command line, or values from a TOML file, by the name of the option
    :raises ConfigError: an option is unknown, or its value is invalid
    """
    fields = {field.name: field for field in options_of(cls)}
    settings: dict[str, Any] = {}
    for key, value in values.items():
        field = fields.get(key.replace("-", "_"))
        if field is None:
            known = [typed(name) for name in fields]
            advice = suggestion(key, known) or f"; available options: {', '.join(known) or 'none'}"
            raise ConfigError(f"unknown option {typed(key)!r} of {protocol}{advice}")
        text = text_of(value)
        try:
            settings[field.name] = converted(field, text)
        except ValueError as expected:
            raise ConfigError(
                f"invalid value {text!r} for option {protocol}.{typed(key)}: expected {expected}"
            ) from None
    try:
        return cls(**settings)
    except ValueError as error:
        raise ConfigError(f"invalid options of {protocol}: {error}") from None
