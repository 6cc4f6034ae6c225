"""Generate small bugs (mutants) from the source of a module, for tests/verification/torture/generated.py.

    mutations(file, source) -> [Mutation(line, function, kind, old statement, new statement, ...)]

Kinds:

    delete    a statement does nothing, or one of its assignments is left out
    negate    a condition is negated
    compare   < becomes <=, > becomes >=, == becomes !=, `in` becomes `not in`, `is` becomes `is not`, and vice versa
    logic     `and` becomes `or`, and vice versa
    drop      an operand of `and` or `or` is left out
    omit      a loop or a comprehension leaves out the first element
    constant  an integer is one more or one less; True becomes False, and vice versa
    arith     + becomes -, min becomes max, << becomes >>, and vice versa
    return    a value is not returned; a returned bool is negated
    empty     a function that returns nothing returns at once
    except    a caught error is raised again
    argument  two neighbouring arguments of a call change places, or one with a name is left out
    condition a condition has to be met besides, one that the function tests elsewhere; or must not be met
    order     two neighbouring statements change places
    await     the same, where one of them waits for something

Not mutated: docstrings and other strings, annotations, logging, assertions, `__repr__` and `__str__`, interfaces, code
for type checkers, and how attrs declares a field (except its default).  A mutant replaces only the text of the changed
node, so that it reads like the source.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import attrs

KINDS = (
    *("delete", "negate", "compare", "logic", "drop", "omit", "constant", "arith", "return", "empty", "except"),
    *("argument", "condition", "order", "await"),
)
_SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_SWAPPED_NAMES = {"min": "max", "max": "min"}
#: Calls whose arguments may be in any order, or whose order only a type checker needs.
_ANY_ORDER = {"min", "max", "isinstance", "zip"}
_LOGGERS = {"log", "_log", "logger", "_logger"}
_TEXTS = {"__repr__", "__str__"}
#: Operators whose replacement is a typical mistake of arithmetic.
_ARITHMETIC = (ast.Add, ast.Sub, ast.LShift, ast.RShift)


@attrs.frozen
class Mutation:
    """One small bug.

    :ivar file: the path of the module, relative to the root of the tree
    :ivar lines: the lines, counted from 1, of which a test must execute one to meet the bug
    :ivar function: the qualified name of the function or class around it; empty at the level of the module
    :ivar old: the original statement (the head of a compound one), on one line
    :ivar new: the statement with the bug, on one line
    :ivar nth: an ordinal, from 0, of mutants of a function that are otherwise the same
    :ivar span: the part of the source that is replaced
    :ivar text: the replacement
    """

    file: str
    line: int
    lines: range
    function: str
    kind: str
    old: str
    new: str
    nth: int
    span: tuple[int, int]
    text: str

    def applied(self, source: str) -> str:
        """Return the source of the whole module with the bug."""
        return source[: self.span[0]] + self.text + source[self.span[1] :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function} [{self.kind}]\n    - {self.old}\n    + {self.new}"


class _Pair(ast.stmt):
    """Two neighbouring statements, as one node."""

    def __init__(self, first: ast.stmt, second: ast.stmt) -> None:
        super().__init__(lineno=first.lineno, col_offset=first.col_offset)
        self.end_lineno, self.end_col_offset = second.end_lineno, second.end_col_offset


@attrs.frozen
class _Edit:
    """A replacement of ``node``, which is part of ``statement``, by ``text``."""

    kind: str
    statement: ast.stmt
    node: ast.AST
    text: str
    function: str


def mutations(file: str, source: str) -> list[Mutation]:
    """Return the mutants of a module in the order of its lines.

    :param file: its path, which is only stored in the mutants
    :param source: its text
    """
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    places = _Places(source)
    found: list[Mutation] = []
    alike: Counter[tuple[str, str, str, str]] = Counter()
    for edit in finder.edits:
        span = places.span(edit.node)
        begin, end = span if isinstance(edit.node, _Pair) else places.head(edit.statement)
        old = _one_line(source[begin:end])
        new = _one_line(source[begin : span[0]] + edit.text + source[span[1] : end])
        if edit.kind == "empty":
            old, new = f"def {edit.function.rpartition('.')[2]}: ...", f"def {edit.function.rpartition('.')[2]}: return"
        key = (edit.function, edit.kind, old, new)
        lines = range(edit.statement.lineno, places.head_line(edit.statement) + 1)
        if isinstance(edit.node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef):
            first = _without_docstring(edit.node.body)[0]
            lines = range(first.lineno, (first.end_lineno or first.lineno) + 1)
        line = getattr(edit.node, "lineno", edit.statement.lineno)
        made = Mutation(file, line, lines, edit.function, edit.kind, old, new, alike[key], span, edit.text)
        alike[key] += 1
        found.append(made)
    return found


def replacing(file: str, source: str, name: str, old: str, new: str) -> Mutation:
    """Return the bug *name*, in which *new* replaces *old*; a test that executes a line that differs meets it."""
    begin, before, after = source.index(old), old.splitlines(), new.splitlines()
    first = source.count("\n", 0, begin) + 1 + _alike(before, after)
    last = source.count("\n", 0, begin) + len(before) - _alike(before[::-1], after[::-1])
    lines, span = range(first, max(first, last) + 1), (begin, begin + len(old))
    return Mutation(file, first, lines, name, "planted", _one_line(old), _one_line(new), 0, span, new)


def _alike(some: list[str], others: list[str]) -> int:
    """Return how many of the first lines are the same, but never all of *some*."""
    return next(
        (at for at, (one, other) in enumerate(zip(some[:-1], others, strict=False)) if one != other), len(some) - 1
    )


def _one_line(text: str) -> str:
    return re.sub(r":\s+#.*$", ":", " ".join(text.split()))


class _Places:
    """Finds the positions of nodes in the text; the syntax tree counts columns in bytes, and most sources are ASCII."""

    def __init__(self, source: str) -> None:
        self.text = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        if isinstance(node, ast.ExceptHandler | ast.FunctionDef | ast.AsyncFunctionDef):
            body = _without_docstring(node.body)
            return self.span(body[0])[0], self.span(body[-1])[1]
        assert isinstance(node, ast.expr | ast.stmt)
        first = node.lineno
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(first, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def head_line(self, statement: ast.stmt) -> int:
        """Return the last line of a simple statement, or of the head of a compound one."""
        body = getattr(statement, "body", None)
        if body and isinstance(body, list):
            return max(statement.lineno, body[0].lineno - 1)
        return statement.end_lineno or statement.lineno

    def head(self, statement: ast.stmt) -> tuple[int, int]:
        begin = self.at(statement.lineno, statement.col_offset)
        body = getattr(statement, "body", None)
        if isinstance(statement, ast.Try | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or not body:
            return begin, self.span_end(statement)
        return begin, self.at(body[0].lineno, body[0].col_offset)

    def span_end(self, statement: ast.stmt) -> int:
        assert statement.end_lineno is not None
        assert statement.end_col_offset is not None
        return self.at(statement.end_lineno, statement.end_col_offset)


class _Finder(ast.NodeVisitor):
    """Collects the edits of a module."""

    def __init__(self, source: str) -> None:
        self.edits: list[_Edit] = []
        self._scope: list[str] = []
        self._statement: ast.stmt = ast.Pass()
        self._condition: ast.expr | None = None
        self._function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        self._tests: list[list[ast.expr]] = []  #: the conditions of each function around the present place

    def _add(self, kind: str, node: ast.AST, text: str, statement: ast.stmt | None = None) -> None:
        self.edits.append(_Edit(kind, statement or self._statement, node, text, ".".join(self._scope)))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            before, self._statement = self._statement, node
            super().visit(node)
            self._statement = before
        else:
            super().visit(node)

    # Code that is not mutated:

    def visit_JoinedStr(self, node: ast.AST) -> None:
        pass

    visit_Assert = visit_JoinedStr

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._delete(node, [node.target])
            self.visit(node.value)

    # Scopes:

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        if bases & {"Interface", "Protocol"}:
            return
        self._scope.append(node.name)
        self._body(node.body)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _TEXTS:
            return
        before, self._function = self._function, node
        self._tests.append([each.test for each in ast.walk(node) if isinstance(each, ast.If | ast.While)])
        self._scope.append(node.name)
        self.visit(node.args)
        body = _without_docstring(node.body)
        if len(body) > 1 and isinstance(node.returns, ast.Constant) and node.returns.value is None:
            self._add("empty", node, "return", node)
        self._body(node.body)
        self._scope.pop()
        self._tests.pop()
        self._function = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def _body(self, body: list[ast.stmt]) -> None:
        for first, second in pairwise(_without_docstring(body)):
            self._swap(first, second)
        for statement in _without_docstring(body):
            self.visit(statement)

    def _swap(self, first: ast.stmt, second: ast.stmt) -> None:
        """Let two simple statements change places, unless the second one needs a name that the first one gives."""
        simple = ast.Expr | ast.Assign | ast.AugAssign | ast.Delete
        if self._function is None or not isinstance(first, simple) or not isinstance(second, simple):
            return
        if all(isinstance(each, ast.Assign) and not _stores(each) for each in (first, second)):
            return  # both only give names to values
        given = {node.id for node in ast.walk(first) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        calls = any(isinstance(node, ast.Call) for each in (first, second) for node in ast.walk(each))
        logs = any(isinstance(each, ast.Expr) and _is_logging(each.value) for each in (first, second))
        if calls and not logs and not given & _names(second):
            waits = any(isinstance(node, ast.Await | ast.Yield) for each in (first, second) for node in ast.walk(each))
            text = f"{ast.unparse(second)}\n{' ' * first.col_offset}{ast.unparse(first)}"
            self._add("await" if waits else "order", _Pair(first, second), text, first)

    # Statements:

    def _delete(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        """Delete an assignment to an attribute or an item; without a local name, the next lines would simply fail."""
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._add("delete", node, "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        self._delete(node, node.targets)
        self._delete_one(node)
        if any(isinstance(target, ast.Name) and target.id in ("__all__", "__slots__") for target in node.targets):
            return
        self.visit(node.value)

    def _delete_one(self, node: ast.Assign) -> None:
        """Leave out each of the assignments of a statement that has several, such as ``a.x, a.y = 1, 2``."""
        (target, *more), value = node.targets, node.value
        if more or not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
            return
        pairs = list(zip(target.elts, value.elts, strict=False))
        if len(pairs) != len(target.elts) or len(pairs) != len(value.elts):
            return
        for left, _ in pairs:
            if isinstance(left, ast.Attribute | ast.Subscript):
                kept = [pair for pair in pairs if pair[0] is not left]
                targets, values = (", ".join(map(ast.unparse, side)) for side in zip(*kept, strict=True))
                self._add("delete", node, f"{targets} = {values}")

    def visit_For(self, node: ast.For) -> None:
        self._omit(node.iter)
        self.generic_visit(node)

    def _omit(self, elements: ast.expr) -> None:
        self._add("omit", elements, f"list({ast.unparse(elements)})[1:]")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("delete", node, "pass")
        if isinstance(node.op, _ARITHMETIC):
            other = ast.AugAssign(node.target, _SWAPPED[type(node.op)](), node.value)
            self._add("arith", node, ast.unparse(other))
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if _is_logging(node.value):
            return
        if isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom):
            if not isinstance(node.value, ast.Yield | ast.YieldFrom):
                self._add("delete", node, "pass")
            self.visit(node.value)

    def visit_Raise(self, node: ast.stmt) -> None:
        self._add("delete", node, "pass")

    visit_Continue = visit_Break = visit_Delete = visit_Raise

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add("delete", node, "pass")
            return
        returns = self._function.returns if self._function is not None else None
        if isinstance(returns, ast.Name) and returns.id == "bool":
            if not isinstance(node.value, ast.Constant):
                self._add("return", node.value, f"not ({ast.unparse(node.value)})")
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("return", node.value, "None")
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._negate(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
            self._add("except", node, "raise", node.body[0])
        self._body(node.body)

    # Expressions:

    def _negate(self, test: ast.expr) -> None:
        text = ast.unparse(test.operand) if isinstance(test, ast.UnaryOp) else f"not ({ast.unparse(test)})"
        self._add("negate", test, f"({text})" if isinstance(test, ast.UnaryOp) else text)
        for other in self._tests[-1] if self._tests else ():
            if ast.dump(other) != ast.dump(test) and self._gives(other) <= self._known:
                for text in (ast.unparse(other), f"not ({ast.unparse(other)})"):
                    self._add("condition", test, f"({ast.unparse(test)}) and ({text})")
                break
        before, self._condition = self._condition, test
        self.visit(test)
        self._condition = before

    def _gives(self, test: ast.expr) -> set[str]:
        """Return the names of *test*, which have to be known where it is added; one that assigns names fits nowhere."""
        assigns = any(isinstance(node, ast.NamedExpr | ast.Await) for node in ast.walk(test))
        return {""} if assigns else _names(test)

    @property
    def _known(self) -> set[str]:
        """Return the parameters of the function, which every statement in it knows."""
        if self._function is None:
            return set()
        arguments = self._function.args
        return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("negate", node.test, f"(not ({ast.unparse(node.test)}))")
        before, self._condition = self._condition, node.test
        self.visit(node.test)
        self._condition = before
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        if not node.is_async:
            self._omit(node.iter)
        self.visit(node.iter)
        for test in node.ifs:
            self._add("negate", test, f"(not ({ast.unparse(test)}))")
            before, self._condition = self._condition, test
            self.visit(test)
            self._condition = before

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            if node is self._condition and len(node.ops) == 1 and not isinstance(operator, _ORDER):
                continue  # negating the condition gives the same mutant
            other = copy.copy(node)
            other.ops = [*node.ops[:at], _SWAPPED[type(operator)](), *node.ops[at + 1 :]]
            self._add("compare", node, ast.unparse(other))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._add("logic", node, f"({ast.unparse(ast.BoolOp(_SWAPPED[type(node.op)](), node.values))})")
        for dropped in node.values:
            rest = [value for value in node.values if value is not dropped]
            self._add("drop", node, f"({ast.unparse(ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0])})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
        if isinstance(node.op, _ARITHMETIC) and not texts:
            other = ast.BinOp(node.left, _SWAPPED[type(node.op)](), node.right)
            self._add("arith", node, f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_logging(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_NAMES:
            self._add("arith", node.func, _SWAPPED_NAMES[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar"):
            return
        if ast.unparse(node.func) == "attrs.field":
            for keyword in node.keywords:
                if keyword.arg in ("default", "factory", "converter", "validator"):
                    self.visit(keyword.value)
            return
        if isinstance(node.func, ast.Name) and _is_error(node.func.id):
            return  # this is only a text
        self._change_arguments(node)
        self.generic_visit(node)

    def _change_arguments(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        for at, (first, second) in enumerate(pairwise(node.args)):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if not starred and called not in _ANY_ORDER and ast.dump(first) != ast.dump(second):
                args = [*node.args[:at], second, first, *node.args[at + 2 :]]
                self._add("argument", node, ast.unparse(ast.Call(node.func, args, node.keywords)))
        for keyword in node.keywords:
            if keyword.arg is not None:
                rest = [each for each in node.keywords if each is not keyword]
                self._add("argument", node, ast.unparse(ast.Call(node.func, node.args, rest)))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("constant", node, f"{node.value + 1}")
            if node.value > 0:
                self._add("constant", node, f"{node.value - 1}")


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and _is_text(first.value) and len(body) > 1:
        return body[1:]
    return body


def _stores(node: ast.Assign) -> bool:
    """Return whether an assignment changes more than local names."""
    return any(isinstance(each, ast.Attribute | ast.Subscript) for target in node.targets for each in ast.walk(target))


def _names(node: ast.AST) -> set[str]:
    """Return the names of *node* that are no built-in ones."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - vars(builtins).keys()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_error(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _is_logging(node: ast.expr) -> bool:
    """Return whether the call only logs, such as ``self._log.warn(...)`` or ``log.info(...)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return any(
        (isinstance(part, ast.Attribute) and part.attr in _LOGGERS)
        or (isinstance(part, ast.Name) and part.id in _LOGGERS)
        for part in _chain(node.func.value)
    )


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    yield node
    if isinstance(node, ast.Attribute):
        yield from _chain(node.value)
