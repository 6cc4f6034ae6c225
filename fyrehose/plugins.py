"""Find protocol plugins by name.

The plugin of each protocol of Fyrehose is the object ``plugin`` in the module ``plugin`` of the protocol's folder, so a
new protocol is a new folder and nothing else.  Another package declares its plugins as entry points of the group
``fyrehose.protocols``, for example in pyproject.toml::

    [project.entry-points."fyrehose.protocols"]
    syslog = "my_package.plugin:plugin"

The name of the entry point is the name of the protocol everywhere: in ``--listen`` and options, in ``fyrehose
protocols``, in log lines, metrics and on the page.  Each plugin is imported when it is needed.  A broken one raises an
error, where Twisted's ``getPlugins`` would hide it.
"""

from __future__ import annotations

import traceback
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, cast

from zope.interface.verify import verifyObject

from fyrehose import protocols
from fyrehose.errors import ConfigError
from fyrehose.interfaces import IProtocolPlugin

#: The group of entry points by which other packages declare plugins.
GROUP = "fyrehose.protocols"

#: Plugins of Fyrehose outside the folder of protocols: the administration of the server.
OTHERS = {"admin": "fyrehose.admin.plugin"}

#: The functions of a module ``cli`` that make clients.
CLIENTS = ("publisher", "tailer", "transactional_publisher")


def names() -> list[str]:
    """Return the sorted names of all installed plugins, without importing any."""
    return sorted(_entries())


def load(name: str) -> IProtocolPlugin:
    """Import and return the protocol plugin *name*.

    :raises ConfigError: the plugin does not exist, or cannot be imported
    """
    entry = _own().get(name) or _entries().get(name)
    if entry is None:
        raise ConfigError(f"unknown protocol {name!r}; expected one of {', '.join(names())}")
    try:
        plugin = entry.load()
        verifyObject(IProtocolPlugin, plugin)
        if plugin.name != name:
            raise ValueError(f"its attribute 'name' is {plugin.name!r}; use the name of the entry point")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"protocol plugin {name!r} ({entry.value}) cannot be loaded: {reason} ({where.filename}, line "
            f"{where.lineno})"
        ) from error
    return cast("IProtocolPlugin", plugin)


def _own() -> dict[str, EntryPoint]:
    """Return the plugins of Fyrehose, which work in a checkout that is not installed, too."""
    folders = (module.name for module in iter_modules(protocols.__path__) if module.ispkg)
    modules = {**OTHERS, **{name: f"{protocols.__name__}.{name}.plugin" for name in folders}}
    return {
        name: EntryPoint(name, f"{module}:plugin", GROUP)
        for name, module in modules.items()
        if find_spec(module) is not None
    }


def _entries() -> dict[str, EntryPoint]:
    """Return the plugins of all packages; no package can replace one of Fyrehose."""
    return {entry.name: entry for entry in entry_points(group=GROUP)} | _own()


def load_clients(name: str) -> Any:
    """Return the module ``cli`` beside the plugin *name*, or None without one."""
    module = f"{protocols.__name__}.{name}.cli"
    return import_module(module) if name in _own() and find_spec(module) is not None else None


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
