"""Which statements of a state machine random schedules run, and how often: a rule that never ran was not tested.

with Ran(module, ...) as ran:
    ...
ran.never() -> the branches that never ran, each by its function and its first statement
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_OPTIMIZED = 2  #: the flag of the code of a function, in contrast to that of a class


class Ran:
    """Counts the statements of functions in *modules* that run in this thread; much slower than without."""

    def __init__(self, *modules: ModuleType) -> None:
        self.files = [str(module.__file__) for module in modules]
        self.counts: Counter[tuple[str, int]] = Counter()
        self._before: Any = None

    def __enter__(self) -> Ran:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._counted if frame.f_code.co_filename in self.files else None

    def _counted(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.counts[frame.f_code.co_filename, frame.f_lineno] += 1
        return self._counted

    def branches(self) -> dict[str, int]:
        """Return how often each branch ran, by its function and the beginning of its first statement."""
        found: dict[str, int] = {}
        for file in self.files:
            source = Path(file).read_text()
            firsts = set(_firsts(ast.parse(source)))
            for code in _functions(compile(source, file, "exec")):
                for line in sorted({line for _, _, line in code.co_lines() if line} & firsts):
                    name = f"{code.co_qualname}: {source.splitlines()[line - 1].strip()[:60]}"
                    found[name] = found.get(name, 0) + self.counts[file, line]
        return found

    def never(self) -> set[str]:
        """Return the branches that never ran."""
        return {branch for branch, count in self.branches().items() if not count}


def _firsts(tree: ast.AST) -> Iterator[int]:
    """Yield the line of the first statement of each branch of the functions in *tree*."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and not isinstance(node, ast.Module | ast.ClassDef):
                documented = isinstance(block[0], ast.Expr) and isinstance(block[0].value, ast.Constant)
                yield block[min(documented, len(block) - 1)].lineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & _OPTIMIZED:
                yield each
            yield from _functions(each)
