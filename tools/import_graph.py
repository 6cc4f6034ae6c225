"""Read the imports of Fyrehose's modules, without running them: who imports whom, directly and however indirectly.

Imports are those of a module, of the packages that it lies in, and of everything of Fyrehose that it imports in turn.
``tests/test_layers.py`` checks their direction, and ``protocols.py`` finds the modules that work without a server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fyrehose"


def module_name(path: Path) -> str:
    """Return the dotted name of the module at *path*."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


#: The fields of a node that have statements.
BLOCKS = {"body", "orelse", "finalbody", "handlers", "cases"}

MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, package: str, types: bool = False) -> set[str]:
    """Return the dotted names that *source* imports, attributes included as if they were modules.

    :param types: include the imports for type checking only
    """
    found: set[str] = set()
    guarded = not types and "TYPE_CHECKING" in source
    stack: list[ast.AST] = [ast.parse(source)]
    while stack:
        node = stack.pop()
        if guarded and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            only_for_types = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            stack.extend(node.orelse if only_for_types else [*node.body, *node.orelse])
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], base]).rstrip(".")
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        # An import is a statement, and no expression has one: most of the tree need not be visited.
        for block in BLOCKS & set(node._fields):
            stack.extend(getattr(node, block))
    return found


@cache
def imports_of(module: str, types: bool = False) -> frozenset[str]:
    """Return the imports of *module*: modules of Fyrehose by their names, others as they are written."""
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    if types and "TYPE_CHECKING" not in source:
        return imports_of(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = imported(source, package, types)
    return frozenset(name for name in names if not name.startswith("fyrehose") or name in MODULES)


def ancestors(module: str) -> Iterator[str]:
    """Return the packages that are imported before *module*."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


@cache
def reached(module: str) -> frozenset[str]:
    """Return all modules that importing *module* imports, directly or indirectly."""
    seen: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            queue += [*imports_of(name), *ancestors(name)]
    return frozenset(seen - {module})
