"""Export public names from a package without importing the modules that define them.

Importing :mod:`fyrehose.protocols.figg.session` runs ``fyrehose/__init__.py`` first, and must not import Twisted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for *package*: a name is imported when it is first used.

    :param modules: the names that each module of the package defines, separated by spaces
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    there = import_module(package)

    def import_name(name: str) -> Any:
        """Import the module that defines *name*, and keep the value, so that this is called once for each name."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = f"{package}.{homes[name]}"
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{home}.".startswith(f"{error.name}."):
                raise  # The module exists, and needs another package.
            raise ImportError(
                f"{package}.{name} belongs to the server: pip install fyrehose", name=error.name
            ) from None
        setattr(there, name, value)
        return value

    return import_name, lambda: sorted({*vars(there), *homes})
