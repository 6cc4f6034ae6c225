"""Options of protocols: an attrs class whose fields convert text.

``--option PROTOCOL.NAME=VALUE`` and a TOML file have the same result.  For example:

    @attrs.frozen(kw_only=True)
    class Settings:
        max_payload: int = option(16 << 20, size, "largest payload taken, in bytes")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, TypeVar

import attrs

from fyrehose.errors import ConfigError

T = TypeVar("T")
Network = IPv4Network | IPv6Network

_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])i?B?|B)?", re.IGNORECASE)
#: The largest size, in bytes: more is more than a file or a disk can have.
LARGEST = 1 << 60
#: The longest duration, in seconds: a century is more than anybody waits, and less than a clock can count.
LONGEST = 36_500 * 86400
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, None: 1, "m": 60, "h": 3600, "d": 86400}


def option(default: Any, convert: Callable[[str], Any], about: str, least: int = 0) -> Any:
    """A field of a settings class: its default, how it is read from text, a line for people; no less than ``least``."""

    def judge(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value < least:
            raise ValueError(f"{field.name} has to be {least} at the least, not {value}")

    return attrs.field(
        default=default, validator=judge if least else None, metadata={"convert": convert, "help": about}
    )


def size(text: str) -> int:
    """Bytes: ``4096``, ``64KiB``, ``16MiB``, ``1G`` (all in powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("a size, such as 65536, 64KiB or 16MiB")
    found = int(match[1]) << 10 * " KMGT".index((match[2] or " ").upper())
    if found > LARGEST:
        raise ValueError(f"a size of {LARGEST >> 40} TiB at the most")
    return found


def duration(text: str) -> float:
    """Seconds: ``30``, ``30s``, ``250ms``, ``5m``, ``12h``, ``7d``."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError("a duration, such as 30s, 250ms, 5m, 12h or 7d")
    found = float(match[1]) * _SECONDS[match[2]]
    if found > LONGEST:
        raise ValueError(f"a duration of {LONGEST // 86400} days at the most")
    return found


def count(text: str) -> int:
    """A whole number, zero or more."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number")
    return int(text)


def boolean(text: str) -> bool:
    """``yes`` or ``no``, or what people write instead."""
    word = text.strip().lower()
    if word not in ("yes", "no", "true", "false", "on", "off", "1", "0"):
        raise ValueError("yes or no")
    return word in ("yes", "true", "on", "1")


def name(text: str) -> str:
    """A name of 1 to 255 bytes of UTF-8."""
    if not 1 <= len(text.encode(errors="replace")) <= 255:
        raise ValueError("a name of 1 to 255 bytes")
    return text


def networks(text: str) -> tuple[Network, ...]:
    """Networks in CIDR notation, separated by commas."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError("networks such as 10.0.0.0/8,192.168.1.7/32") from None


def build(cls: type[T], protocol: str, values: Mapping[str, object]) -> T:
    """``cls`` made from ``values``: texts from the command line, or what a TOML file holds.

    :raises ConfigError: says which option is wrong and what would be right
    """
    fields = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
    settings: dict[str, Any] = {}
    for key, value in values.items():
        field = fields.get(key.replace("-", "_"))
        if field is None:
            known = ", ".join(name.replace("_", "-") for name in fields) or "none"
            raise ConfigError(f"{protocol} has no option {key!r}; it has: {known}")
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        try:
            settings[field.name] = field.metadata["convert"](text)
        except ValueError as wanted:
            raise ConfigError(
                f"option {protocol}.{key.replace('_', '-')} is {text!r}, and should be {wanted}"
            ) from None
    try:
        return cls(**settings)
    except ValueError as wrong:
        raise ConfigError(f"options of {protocol}: {wrong}") from None
