"""Find protocol plugins by name.

A protocol plugin is the object ``plugin`` in the module ``plugin`` of a protocol's folder, so a new protocol is a new
folder and nothing else.  Each plugin is imported when it is needed.  A broken one raises an error, where Twisted's
``getPlugins`` would hide it.  A name with a dot is the module of a plugin in another package.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, cast

from zope.interface.verify import verifyObject

from fyrehose import protocols
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin

#: Plugins that serve no protocol of messages: the administration of the server.
OTHERS = {"admin": "fyrehose.admin.plugin"}


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
    """Return the module ``cli`` beside the plugin *name* (:class:`fyrehose.interfaces.IClients`), or None without one.

    :raises ConfigError: the plugin does not exist, or the module cannot be imported
    """
    if "." not in name and name not in names():
        load(name)
    module = f"{_module(name).rpartition('.')[0]}.cli"
    try:
        return import_module(module) if find_spec(module) is not None else None
    except Exception as error:
        raise _broken(name, error) from error


def _module(name: str) -> str:
    return name if "." in name else OTHERS.get(name, f"fyrehose.protocols.{name}.plugin")


def _broken(name: str, error: Exception) -> ConfigError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    reason = " ".join(str(error).split())
    return ConfigError(f"protocol plugin {name!r} cannot be loaded: {reason} ({where.filename}, line {where.lineno})")
