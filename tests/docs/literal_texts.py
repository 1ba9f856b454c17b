"""What expressions of the source can be as texts, read off the code without running any of it.

A text is followed through names, f-strings and the callers of a function to the literals that it is
made of. What only a run can know is a `GAP` in it. This is for pages that list what the code says,
so a text that is not found is a gap and never an error.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

GAP = "*"
_DEEPEST = 6  # names and calls that are followed, one behind the other
_MOST = 40  # texts of one expression; beyond, it is a gap

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.ClassDef


class Place(NamedTuple):
    """An expression and where it stands: its module, and the scopes around it, outermost first."""

    node: ast.expr
    module: str
    scopes: tuple[Scope, ...]

    def other(self, node: ast.expr) -> "Place":
        """Another expression of the same scope."""
        return self._replace(node=node)

    @property
    def function(self) -> Function | None:
        """The innermost function around it."""
        return next((s for s in reversed(self.scopes) if not isinstance(s, ast.ClassDef)), None)


class Call(NamedTuple):
    """A call, and where it stands."""

    node: ast.Call
    at: Place


class Sources:
    """Some modules of one tree, by their path from its root."""

    def __init__(self, root: Path, packages: Iterable[str]) -> None:
        found = [path for name in packages for path in sorted((root / name).rglob("*.py"))]
        self.trees = {
            str(path.relative_to(root)): ast.parse(path.read_text(encoding="utf-8"))
            for path in found
            if "grpc_gen" not in path.parts
        }
        self._values: dict[ast.AST, dict[str, list[ast.expr]]] = {}

    @cached_property
    def calls(self) -> dict[str, list[Call]]:
        """By the last part of what is called."""
        found: dict[str, list[Call]] = defaultdict(list)
        for module, tree in self.trees.items():
            for place in _expressions(tree, module):
                if isinstance(place.node, ast.Call) and (name := _last_name(place.node.func)):
                    found[name].append(Call(place.node, place))
        return found

    @cached_property
    def _constants(self) -> dict[str, list[Place]]:
        """Constants of modules, by name."""
        found: dict[str, list[Place]] = defaultdict(list)
        for module, tree in self.trees.items():
            for statement in tree.body:
                for name, value in _bindings(statement):
                    if name.isupper():
                        found[name].append(Place(value, module, ()))
        return found

    def texts(self, place: Place, depth: int = 0) -> set[str]:
        """What the expression can be."""
        if depth > _DEEPEST:
            return {GAP}
        match place.node:
            case ast.Constant(value=value):
                return {str(value)}
            case ast.JoinedStr(values=parts):
                return self._joined([place.other(part) for part in parts], depth)
            case ast.FormattedValue(value=value):
                found = self.texts(place.other(value), depth + 1)
                return found if len(found) <= _MOST // 4 else {GAP}
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([place.other(left), place.other(right)], depth)
            case ast.IfExp(body=one, orelse=other):
                ways = (place.other(one), place.other(other))
                return set().union(*(self.texts(way, depth + 1) for way in ways))
            case ast.Name(id=name):
                return self._named(name, place, depth)
            case _:
                return {GAP}

    def _means(self, call: Call, module: str) -> bool:
        """Whether what is called is what the caller has imported from `module`."""
        if not isinstance(call.node.func, ast.Name):
            return False
        origin = self._imports[call.at.module].get(call.node.func.id)
        return origin == module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def _imports(self) -> dict[str, dict[str, str]]:
        """By module: where names that it imports are from."""
        return {
            module: {
                each.asname or each.name: node.module
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module
                for each in node.names
            }
            for module, tree in self.trees.items()
        }

    def _joined(self, parts: list[Place], depth: int) -> set[str]:
        found = {""}
        for part in parts:
            found = {a + b for a in found for b in self.texts(part, depth + 1)}
            if len(found) > _MOST:
                return {GAP}
        return found

    def _named(self, name: str, place: Place, depth: int) -> set[str]:
        function = place.function
        sources: list[Place] = []
        if function is not None:
            values = self._values_in(function).get(name, [])
            sources = [place.other(value) for value in values]
            sources = sources or self._arguments(name, function, place)
        if not sources:
            known = self._constants.get(name, [])
            sources = [each for each in known if each.module == place.module] or known
        return set().union(*(self.texts(each, depth + 1) for each in sources)) or {GAP}

    def _values_in(self, function: Function) -> dict[str, list[ast.expr]]:
        if function not in self._values:
            self._values[function] = _bound_in(function.body)
        return self._values[function]

    def _arguments(self, name: str, function: Function, place: Place) -> list[Place]:
        """What callers give for a parameter; where nobody gives it, what it is by itself."""
        arguments = function.args
        positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        if name not in positional and name not in [each.arg for each in arguments.kwonlyargs]:
            return []
        owner = place.scopes[place.scopes.index(function) - 1] if len(place.scopes) > 1 else None
        is_method = isinstance(owner, ast.ClassDef)
        called = owner.name if is_method and function.name == "__init__" else function.name
        index = positional.index(name) - is_method if name in positional else None
        found: list[Place] = []
        for call in self.calls.get(called, []):
            # Others may have functions of this name, and other classes methods.
            if call.at.module != place.module and not self._means(call, place.module):
                continue
            if (given := _argument(call.node, name, index)) is not None:
                found.append(call.at.other(given))
        usual = dict(zip(positional[::-1], arguments.defaults[::-1], strict=False))
        return found or ([place.other(usual[name])] if name in usual else [])


def _expressions(tree: ast.AST, module: str) -> Iterator[Place]:
    """All of a module, in no order."""
    waiting: list[tuple[ast.AST, tuple[Scope, ...]]] = [(tree, ())]
    while waiting:
        node, scopes = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield Place(child, module, scopes)
            waiting.append((child, (*scopes, child) if isinstance(child, Scope) else scopes))


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _argument(call: ast.Call, name: str, index: int | None) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if index is None or index >= len(call.args):
        return None
    is_spread = any(isinstance(each, ast.Starred) for each in call.args[: index + 1])
    return None if is_spread else call.args[index]


def _bound_in(body: Iterable[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Every name that statements bind to expressions, loops over literals included."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for statement in body:
        for node in ast.walk(statement):
            for target, value in _bindings(node):
                found[target].append(value)
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _paired(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _paired(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _paired(target, value)
        case ast.For(target=target, iter=values) | ast.comprehension(target=target, iter=values):
            if isinstance(values, ast.Tuple | ast.List):
                for each in values.elts:
                    yield from _paired(target, each)
        case _:
            return


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
            for name, each in zip(names, values, strict=True):
                yield from _paired(name, each)
        case _:
            return
