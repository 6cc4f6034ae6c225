"""Find protocol plugins by name.

A protocol plugin is the object ``plugin`` in the module ``plugin`` of a protocol's folder, so a new protocol is a new
folder and nothing else.  Each plugin is imported when it is needed.  A broken one raises an error, where Twisted's
``getPlugins`` would hide it.  A name with a dot is the module of a plugin in another package.
"""

from __future__ import annotations

import traceback
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, cast

from zope.interface.verify import verifyObject

from fyrehose import protocols
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin

#: Plugins that serve no protocol of messages: the administration of the server.
OTHERS = {"admin": "fyrehose.admin.plugin"}

#: The functions of a module ``cli`` that make clients.
CLIENTS = ("publisher", "tailer", "transactional_publisher")


def names() -> list[str]:
    """Return the sorted names of the plugins that come with Fyrehose, without importing any."""
    folders = (module.name for module in iter_modules(protocols.__path__) if module.ispkg)
    return sorted([*OTHERS, *(name for name in folders if find_spec(_module(name)) is not None)])


def load(name: str) -> IProtocolPlugin:
    """Import and return the protocol plugin *name*.

    :param name: the name of a protocol, or the dotted name of a plugin's module
    :raises ConfigError: the plugin does not exist, or cannot be imported
    """
    if "." not in name and name not in names():
        raise ConfigError(
            f"unknown protocol {name!r}; expected one of {', '.join(names())}, or the dotted name of a plugin's module"
        )
    try:
        plugin = import_module(_module(name)).plugin
        verifyObject(IProtocolPlugin, plugin)
    except Exception as error:
        raise _broken(name, error) from error
    return cast("IProtocolPlugin", plugin)


def load_clients(name: str) -> Any:
    """Return the module ``cli`` beside the plugin *name*, or None without one."""
    module = f"{_module(name).rpartition('.')[0]}.cli"
    return import_module(module) if find_spec(module) is not None else None


def with_module_cli(name: str) -> Any:
    """Return the plugin *name* with the clients of its module ``cli``, as an ``IClientPlugin``; None without one.

    This is a transition: a plugin is to provide :class:`fyrehose.interfaces.IClientPlugin` itself.
    """
    module = load_clients(name)
    if module is None:
        return None

    class Late:
        """A client that is made when its stream is known."""

        def __init__(self, *arguments: Any, make: Any) -> None:
            self.arguments, self.make = arguments, make

        def prepare(self, stream: str | None) -> None:
            reactor, host, port, *rest = self.arguments
            self.made = self.make(reactor, host, port, stream, *rest)

        def subscribe(self, stream: str | None, take: Any, after: int | None = None, lost: Any = None) -> None:
            self.made = self.make(*self.arguments, stream, after, take, lost)

        def publish(self, stream: str | None, payload: bytes) -> Any:
            return self.made.publish(payload)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.made, name)

    made = {kind: partial(Late, make=getattr(module, kind)) for kind in CLIENTS if hasattr(module, kind)}
    return SimpleNamespace(default_port=module.default_port, settings=load(name).settings, **made)


def _module(name: str) -> str:
    return name if "." in name else OTHERS.get(name, f"fyrehose.protocols.{name}.plugin")


def _broken(name: str, error: Exception) -> ConfigError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    reason = " ".join(str(error).split())
    return ConfigError(f"protocol plugin {name!r} cannot be loaded: {reason} ({where.filename}, line {where.lineno})")
