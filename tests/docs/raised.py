"""Every error that the code can tell a user, as the beginning of its line, read off the source.

A *family* is a status and that beginning: the field of an `InvalidField`, of other errors what
stands before the first colon. Where only a run can know the beginning (the path of a file, say) the
family is that of its module.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specserve import errors
from specserve.errors import InvalidField, SpecserveError
from tests.docs.literal_texts import GAP, Call, Sources

ROOT = Path(__file__).parents[2]
PRODUCT = ("specserve", "target_node", "draft_node")
_REFUSAL = "Refusal"  # of HTTP, which is no exception
_ENDING = "Ending"  # of a launch
_OF_COMMANDS = (
    "specserve/settings/", "specserve/processes/", "specserve/commands/", "specserve/models/",
    "specserve/drafters/", "draft_node/",
)  # fmt: skip
# Where errors are only passed on in other words.
_PASSED_ON = frozenset({"specserve/errors.py"})
_RETOLD = frozenset({"specserve/api/http/refusals.py"})  # with the status that the error has


class Family(NamedTuple):
    """Errors that begin alike and are told alike."""

    code: str  # a gRPC status, or "HTTP" and a status that HTTP alone has
    told: str  # with GAP for what only a run knows; GAP alone: nothing of it is known
    module: str

    @property
    def is_known(self) -> bool:
        """Whether the beginning is."""
        return not self.told.startswith((GAP, f"--{GAP}"))

    @property
    def is_of_commands(self) -> bool:
        """Whether a command ends with it, and no request does."""
        return self.module.startswith(_OF_COMMANDS)


def classes() -> dict[str, type[SpecserveError]]:
    """The house's errors, by name."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in found if issubclass(kind, SpecserveError)}


@cache
def sources() -> Sources:
    """All modules of the product."""
    return Sources(ROOT, PRODUCT)


@cache
def families() -> dict[Family, list[str]]:
    """Where each is raised."""
    found: dict[Family, list[str]] = {}
    for call, code, is_field in _raised():
        if call.at.module in _PASSED_ON or (code == f"HTTP {GAP}" and call.at.module in _RETOLD):
            continue
        for text in sources().texts(call.at.other(_told_by(call))):
            family = Family(code, text if is_field else beginning(text), call.at.module)
            found.setdefault(family, []).append(f"{call.at.module}:{call.node.lineno}")
    return found


def _raised() -> Iterator[tuple[Call, str, bool]]:
    """Calls that make an error, its status, and whether they name a field first."""
    for name, kind in (classes() | _subclasses()).items():
        for call in sources().calls.get(name, []):
            if call.node.args:  # else it is raised again, or made of nothing
                yield call, kind.code, issubclass(kind, InvalidField)
    for call in sources().calls.get(_REFUSAL, []):
        named = {each.arg: each.value for each in call.node.keywords}
        status = sources().texts(call.at.other(named["code"])) if "code" in named else {"500"}
        yield call, f"HTTP {min(status)}", False
    for call in sources().calls.get(_ENDING, []):
        if len(call.node.args) > 1:
            yield call, "UNAVAILABLE", False


def _subclasses() -> dict[str, type[SpecserveError]]:
    """Classes elsewhere that say the same as one of the house's."""
    known = classes()
    return {
        node.name: known[base.id]
        for tree in sources().trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name) and base.id in known and node.name not in known
    }


def _told_by(call: Call) -> ast.expr:
    named = {each.arg: each.value for each in call.node.keywords}
    if "message" in named:
        return named["message"]
    is_ending = isinstance(call.node.func, ast.Name) and call.node.func.id == _ENDING
    return call.node.args[1 if is_ending else 0]


def beginning(text: str) -> str:
    """Up to the first colon, or to the first word behind the beginning that only a run knows."""
    head = re.split(r"[:;,](?= |$)| \(", text.strip())[0]
    place = head.find(GAP, 1)
    return head if place < 0 else head[:place] + head[place:].split(" ")[0].rstrip("'\"")


def exit_codes() -> dict[int, list[str]]:
    """Exit codes that are constants of the code, and where."""
    found: dict[int, list[str]] = {}
    for module, tree in sources().trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign):
                for name, value in _named_values(node):
                    if re.match(r"_?EXIT_", name):
                        found.setdefault(value, []).append(f"{module}: {name}")
    return found


def _named_values(node: ast.Assign) -> Iterator[tuple[str, int]]:
    (target,) = node.targets
    pairs = (
        zip(target.elts, node.value.elts, strict=True)
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        else [(target, node.value)]
    )
    for name, value in pairs:
        match name, value:
            case ast.Name(id=found), ast.Constant(value=int() as code):
                yield found, code
            case _:
                pass
