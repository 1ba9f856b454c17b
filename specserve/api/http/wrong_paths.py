# pyright: strict
"""What is answered where a path or a method is wrong: which one there is, and what to send."""

import re
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.routing import Route

from specserve.api.http.refusals import Refusal
from specserve.nearest import nearest

_WRONG_METHOD = 405
_BODIES = {  # to begin with, of paths that take one
    "/v1/completions": '{"prompt": "Once upon a time"}',
    "/v1/chat/completions": '{"messages": [{"role": "user", "content": "Hello"}]}',
    "/v1/responses": '{"input": "Hello"}',
    "/tokenize": '{"prompt": "Once upon a time"}',
    "/detokenize": '{"tokens": [1, 2, 3]}',
}
# What clients put in front where their base_url is wrong, once too often or not at all.
_PREFIXES = re.compile("^(/(v1|api|openai))+(?=/)")
_MOST_CHARS = 128  # of a path that is quoted


class WrongPaths:
    """Knows the routes of an app."""

    def __init__(self, routes: Sequence[Route]) -> None:
        """Those that are named have one method beside HEAD."""
        self._routes = routes
        plain = [route for route in routes if "{" not in route.path]
        self._methods = {route.path: _method_of(route) for route in plain}

    def refusal(self, method: str, path: str, error: HTTPException) -> Refusal:
        """Of what starlette raises where no route fits."""
        say = self._of_method if error.status_code == _WRONG_METHOD else self._of_path
        message = f"{method} {path[:_MOST_CHARS]}: {say(path)}"
        return Refusal(message=message, type="invalid_request_error", code=error.status_code)

    def _of_method(self, path: str) -> str:
        if path in _BODIES:
            return f"this path takes POST, with a JSON body such as {_BODIES[path]}"
        for route in self._routes:
            if route.path_regex.match(path):
                return f"this path takes {' and '.join(_methods_of(route))}"
        raise AssertionError(f"no route takes {path}")

    def _of_path(self, path: str) -> str:
        if (meant := self._meant(path)) is not None:
            return f"there is no such path; did you mean {self._methods[meant]} {meant}?"
        known = ", ".join(f"{method} {path}" for path, method in self._methods.items())
        return f"there is no such path; there are {known}"

    def _meant(self, path: str) -> str | None:
        for known in self._methods:
            if _PREFIXES.sub("", known) == _PREFIXES.sub("", path):
                return known
        return nearest(path[:_MOST_CHARS], self._methods)


def _method_of(route: Route) -> str:
    (method,) = _methods_of(route)
    return method


def _methods_of(route: Route) -> list[str]:
    return sorted((route.methods or set()) - {"HEAD"}, reverse=True)
