"""The kits: which protocols there are.

A kit is the ``kit`` of the ``kit`` module in a protocol's folder, so a protocol is one new folder and nothing else.
Kits are imported one by one, when they are asked for, and one that is broken says so; ``getPlugins`` would hide it.  A
name with a dot is a module anywhere, so that a protocol need not live here.
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
from fyrehose.interfaces import IProtocolKit

#: Listeners that are no protocols: to the server itself.
OTHERS = {"admin": "fyrehose.admin.kit"}


def names() -> list[str]:
    """The names of the kits that come with Fyrehose, sorted; none of them is imported."""
    folders = (module.name for module in iter_modules(protocols.__path__) if module.ispkg)
    return sorted([*OTHERS, *(name for name in folders if find_spec(_module(name)) is not None)])


def load(name: str) -> IProtocolKit:
    """The kit called ``name``, or of the module ``name`` where it has a dot.

    :raises ConfigError: there is none, or it cannot be imported
    """
    if "." not in name and name not in names():
        raise ConfigError(
            f"no protocol is called {name!r}; there are: {', '.join(names())} (or the dotted name of a kit's module)"
        )
    try:
        kit = import_module(_module(name)).kit
        verifyObject(IProtocolKit, kit)
    except Exception as error:
        raise _broken(name, error) from error
    return cast("IProtocolKit", kit)


def load_clients(name: str) -> Any:
    """The module ``cli`` beside the kit called ``name``: see :class:`fyrehose.interfaces.IClients`; None without one.

    :raises ConfigError: there is no such kit, or the module cannot be imported
    """
    if "." not in name and name not in names():
        load(name)
    module = f"{_module(name).rpartition('.')[0]}.cli"
    try:
        return import_module(module) if find_spec(module) is not None else None
    except Exception as error:
        raise _broken(name, error) from error


def _module(name: str) -> str:
    return name if "." in name else OTHERS.get(name, f"fyrehose.protocols.{name}.kit")


def _broken(name: str, error: Exception) -> ConfigError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split())
    return ConfigError(f"the kit {name!r} is broken: {said} ({where.filename}, line {where.lineno})")
