"""Import modules only when they are used: the public names of packages, and packages that an extra installs.

Importing :mod:`fyrehose.protocols.figg.session` runs ``fyrehose/__init__.py`` first, and must not import Twisted.  So
packages export their public names by :func:`lazily`, which imports the module that defines a name when the name is
used.

Packages that Fyrehose uses and does not install by itself come with an :class:`Extra`: ``pip install
'fyrehose[eventbus]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import attrs

from fyrehose.errors import MissingExtra


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for *package*, which import a name when it is first used.

    :param modules: the names that each module of the package defines, separated by spaces
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    there = import_module(package)

    def import_name(name: str) -> Any:
        """Import *name* from its module, and keep the value, so that this function is called once for each name."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = f"{package}.{homes[name]}"
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{home}.".startswith(f"{error.name}."):
                raise  # The module exists, but needs another package that is missing.
            raise ImportError(
                f"{package}.{name} belongs to the server: pip install fyrehose", name=error.name
            ) from None
        setattr(there, name, value)
        return value

    return import_name, lambda: sorted({*vars(there), *homes})


@attrs.frozen
class Extra:
    """An optional package, and the extra of Fyrehose that installs it.

    :ivar name: the name of the extra
    :ivar package: the package's name, as pip knows it
    :ivar module: the module whose presence shows that the package is installed
    :ivar use: what the package is for, if the protocol also works without it; empty: the protocol needs it
    """

    name: str
    package: str
    module: str
    use: str = ""

    @property
    def installed(self) -> bool:
        """Return whether the package is installed, without importing it."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:  # the package around the module is missing, too
            return False

    @property
    def command(self) -> str:
        """Return the command that installs the package, quoted because shells expand brackets."""
        return f"pip install 'fyrehose[{self.name}]'"

    def missing(self, what: str) -> str:
        """Return a message for people that *what* lacks the package, and how to install the package."""
        return f"{what} {self.use or 'needs'} {self.package}: {self.command}"

    def require(self, what: str) -> None:
        """Check that the package is installed.

        :param what: for the error: the part of Fyrehose that needs the package
        :raises MissingExtra: the package is not installed
        """
        if not self.installed:
            raise MissingExtra(self.missing(what))


ADMIN = Extra("admin", "prometheus-client", "prometheus_client")
EVENTBUS = Extra("eventbus", "PyNaCl", "nacl", use="encrypts with")
LUMBERJACK = Extra("lumberjack", "isal", "isal", use="inflates two and a half times as fast with")
ZSTD = Extra("http", "backports.zstd", "backports.zstd", use="inflates zstd with")
OTLP = Extra("otlp", "opentelemetry-proto", "opentelemetry.proto", use="takes OTLP logs with")
NATS = Extra("replication", "nats-py", "nats")
SPARK = Extra("spark", "pyspark", "pyspark")
ARROW = Extra("spark", "pyarrow", "pyarrow")
