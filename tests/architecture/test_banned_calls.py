"""What no module may do: execute what it receives, or talk past the log."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import ROOT, parse, source_files

BANNED_MODULES = {
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "jsonpickle",
    "marshal",
    "multiprocessing",  # whose queues, pipes and managers pickle what they carry
    "pickle",
    "shelve",
    "xmlrpc",
}
BANNED_NAMES = {"__import__", "eval", "exec", "print"}
BANNED_ATTRIBUTES = {
    "recv_pyobj",
    "send_pyobj",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}
BANNED_DOTTED = {
    "builtins.eval",
    "builtins.exec",
    "os.popen",
    "os.system",
    "torch.distributed.rpc",
    "torch.hub.load",
    "torch.jit.load",
    "torch.load",
    "torch.package",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
# `weights_only=True` was got around more than once: what torch has pickled is not read at all.
BANNED_KEYWORDS = {"allow_pickle", "shell", "trust_remote_code", "weights_only"}


def banned_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every banned import, call or reference."""
    for node in ast.walk(tree):
        for name in _names(node):
            if (
                name.split(".")[0] in BANNED_MODULES
                or name.rpartition(".")[2] in BANNED_ATTRIBUTES
                or name in BANNED_DOTTED
            ):
                yield node.lineno, name  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and node.id in BANNED_NAMES:
            yield node.lineno, node.id
        if isinstance(node, ast.keyword) and node.arg in BANNED_KEYWORDS and not _is_false(node):
            yield node.value.lineno, node.arg


def _is_false(keyword: ast.keyword) -> bool:
    return isinstance(keyword.value, ast.Constant) and keyword.value.value is False


def _names(node: ast.AST) -> list[str]:
    """Dotted names that `node` itself imports or refers to."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [_dotted(node)] if isinstance(node, ast.Attribute) else []


def _dotted(node: ast.AST) -> str:
    """`a.b.c`; of what is no name, such as a call, only what is read from it: `.b.c`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_no_banned_call():
    found = {str(path.relative_to(ROOT)): list(banned_uses(parse(path))) for path in source_files()}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from pickle import loads",
        "socket.recv_pyobj()",
        "sockets()[0].recv_pyobj()",
        "x = pickle.loads",
        "torch.load('x')",
        "from torch import load",
        "dist.broadcast_object_list([x])",
        "eval('1')",
        "f = exec",
        "print('x')",
        "from_pretrained(folder, trust_remote_code=True)",
        "from yaml import load",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "load(path, weights_only=True)",
        "from multiprocessing import Queue",
        "import torch.distributed.rpc",
        "torch.jit.load(path)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "__import__(name)",
    ],
)
def test_the_lint_sees_a_planted_call(planted):
    assert list(banned_uses(ast.parse(planted)))


def test_the_lint_leaves_harmless_code_alone():
    harmless = "safetensors.torch.load_file(path)\nmodel.eval()\njson.load(file)\ngraph.exec"
    harmless += "\nnp.load(path, allow_pickle=False)"
    assert list(banned_uses(ast.parse(harmless))) == []
