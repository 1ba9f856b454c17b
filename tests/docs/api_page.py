"""docs/api.md, all of which is made from the code."""

from tests.docs import grpc_reference, http_reference, python_reference
from tests.docs.raised import ROOT

PAGE = ROOT / "docs" / "api.md"
_HEAD = """# API reference

Made by `python -m tests.docs` from the code: the schema in `proto/`, the paths and bodies of the
HTTP front end, and the Python client. How to ask is in [running.md](running.md), what a refusal
means in [errors.md](errors.md), settings of a launch are in [configuration.md](configuration.md).
"""


def made() -> str:
    """The whole page."""
    sections = (http_reference.lines(), grpc_reference.lines(), python_reference.lines())
    return "\n".join([_HEAD, *("\n".join(lines) + "\n" for lines in sections)])
