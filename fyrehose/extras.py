"""Packages that Fyrehose uses and does not install by itself: which extra of Fyrehose brings each.

pip install 'fyrehose[eventbus]'
"""

from __future__ import annotations

from importlib.util import find_spec

import attrs

from fyrehose.errors import MissingExtra


@attrs.frozen
class Extra:
    """A package, and the extra that brings it.

    :ivar name: the name of the extra
    :ivar package: the package's name, as pip knows it
    :ivar module: the module to look for
    :ivar use: what the package is for, if the protocol also works without it; empty: the protocol needs it
    """

    name: str
    package: str
    module: str
    use: str = ""

    @property
    def installed(self) -> bool:
        """Return whether the package is installed; it is not imported."""
        return find_spec(self.module) is not None

    @property
    def command(self) -> str:
        """Return the command that installs the package, quoted because shells expand brackets."""
        return f"pip install 'fyrehose[{self.name}]'"

    def missing(self, what: str) -> str:
        """Return a message for people: *what* lacks the package, and how to install it."""
        return f"{what} {self.use or 'needs'} {self.package}: {self.command}"

    def require(self, what: str) -> None:
        """Check that the package is installed.

        :param what: what needs it, for the error
        :raises MissingExtra: it is not
        """
        if not self.installed:
            raise MissingExtra(self.missing(what))


ADMIN = Extra("admin", "prometheus-client", "prometheus_client")
EVENTBUS = Extra("eventbus", "pyzmq", "zmq")
MONGODB = Extra("mongodb", "pymongo", "bson")
LUMBERJACK = Extra("lumberjack", "isal", "isal", use="inflates two and a half times as fast with")
SPARK = Extra("spark", "pyspark", "pyspark")
ARROW = Extra("spark", "pyarrow", "pyarrow")
