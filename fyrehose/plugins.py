"""Find protocol plugins by name.

The plugin of each protocol of Fyrehose is the object ``plugin`` in the module ``plugin`` of the protocol's folder, so a
new protocol is a new folder and nothing else.  Another package declares its plugins as entry points of the group
``fyrehose.protocols``, for example in pyproject.toml::

    [project.entry-points."fyrehose.protocols"]
    syslog = "my_package.plugin:plugin"

The name of the entry point is the name of the protocol everywhere: in ``--listen`` and options, in ``fyrehose
protocols``, in log lines, metrics and on the page.  Each plugin is imported when it is needed.  A broken plugin raises
an error, which Twisted's ``getPlugins`` would hide.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, cast

from zope.interface.verify import verifyObject

from fyrehose import protocols
from fyrehose.errors import ConfigError
from fyrehose.imports import Extra
from fyrehose.interfaces import IProtocolPlugin
from fyrehose.options import suggestion

#: The group of entry points by which other packages declare plugins.
GROUP = "fyrehose.protocols"

#: Plugins of Fyrehose outside the folder of protocols, such as the admin listener.
OTHERS = {"admin": "fyrehose.admin.plugin"}

#: The group of entry points by which other packages declare destinations of ``fyrehose forward``, and Fyrehose's own.
DESTINATIONS = "fyrehose.destinations"
OWN_DESTINATIONS = {
    "elasticsearch": "fyrehose.forward.http",
    "fyrehose": "fyrehose.protocols.http.destination",
    "http": "fyrehose.forward.http",
    "kafka": "fyrehose.forward.kafka",
    "lumberjack": "fyrehose.protocols.lumberjack.destination",
    "opensearch": "fyrehose.forward.http",
    "relp": "fyrehose.protocols.syslog.destination",
    "syslog": "fyrehose.protocols.syslog.destination",
}


def names() -> list[str]:
    """Return the sorted names of all installed plugins, without importing a plugin."""
    return sorted(_entries())


def load(name: str) -> IProtocolPlugin:
    """Import and return the protocol plugin *name*.

    :raises ConfigError: the plugin does not exist, or cannot be imported
    """
    entry = _own().get(name) or _entries().get(name)
    if entry is None:
        known = names()
        raise ConfigError(f"unknown protocol {name!r}; expected one of {', '.join(known)}{suggestion(name, known)}")

    def check(plugin: Any) -> None:
        verifyObject(IProtocolPlugin, plugin)
        if plugin.name != name:
            raise ValueError(f"its attribute 'name' is {plugin.name!r}; use the name of the entry point")

    return cast("IProtocolPlugin", _loaded("protocol plugin", entry, check))


def destination(name: str) -> Any:
    """Import and return the :class:`fyrehose.forward.destination.Destination` of URLs with the scheme *name*.

    :raises ConfigError: the destination does not exist, or cannot be imported
    """
    own = {each: EntryPoint(each, f"{module}:{each}", DESTINATIONS) for each, module in OWN_DESTINATIONS.items()}
    entries = {entry.name: entry for entry in entry_points(group=DESTINATIONS)} | own
    if name not in entries:
        known = sorted(entries)
        raise ConfigError(f"unknown destination {name!r}; expected one of {', '.join(known)}{suggestion(name, known)}")
    return _loaded("destination", entries[name], lambda found: None)


def _loaded(kind: str, entry: EntryPoint, check: Callable[[Any], None]) -> Any:
    """Return the object of an entry point.

    :param kind: what it is, for the error
    :param check: raises an error if the object is none of that kind
    :raises ConfigError: it cannot be imported, or is of another kind
    """
    try:
        found = entry.load()
        check(found)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{kind} {entry.name!r} ({entry.value}) cannot be loaded: {reason} ({where.filename}, line {where.lineno})"
        ) from error
    return found


def missing_extra(plugin: IProtocolPlugin) -> Extra | None:
    """Return the extra whose package *plugin* uses and that is not installed; None if nothing is missing."""
    extra: Extra | None = plugin.abilities.extra
    return None if extra is None or extra.installed else extra


def _own() -> dict[str, EntryPoint]:
    """Return the plugins of Fyrehose itself, which also work in a checkout that is not installed."""
    folders = (module.name for module in iter_modules(protocols.__path__) if module.ispkg)
    modules = {**OTHERS, **{name: f"{protocols.__name__}.{name}.plugin" for name in folders}}
    return {
        name: EntryPoint(name, f"{module}:plugin", GROUP)
        for name, module in modules.items()
        if find_spec(module) is not None
    }


def _entries() -> dict[str, EntryPoint]:
    """Return the plugins of all packages; no package can replace a plugin of Fyrehose."""
    return {entry.name: entry for entry in entry_points(group=GROUP)} | _own()
