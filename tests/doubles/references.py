"""Count what an object remembers, for tests of bounds, without the names of its attributes."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType


def references(thing: object, *without: object) -> int:
    """Return how many references *thing* and the objects that it leads to hold: each entry of a table counts.

    Equal numbers before and after some calls mean that nothing was remembered in between.  Classes, modules and what
    functions use of their module do not count.

    :param without: other objects that do not count, nor what only they lead to
    """
    seen, todo, count = {id(each) for each in without}, [thing], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | BuiltinFunctionType):
            continue
        seen.add(id(each))
        found = gc.get_referents(*each.__closure__ or ()) if isinstance(each, FunctionType) else gc.get_referents(each)
        count += len(found)
        todo += found
    return count
