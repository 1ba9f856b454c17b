# pyright: strict
"""The page at `/`: its parts put together into one document that needs no other file.

Its scripts are let run by their digests alone, so that text of a model that got into the document
could do nothing there, and nothing but this server may be asked.
"""

import base64
import hashlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "page"
_DOCUMENT, _STYLES = "page.html", ("page.css",)
_SCRIPTS = ("drawing.js", "live.js", "answers.js", "compare.js")


class Page:
    """The document, and the headers that it is sent with."""

    def __init__(self) -> None:
        """Read from the package's files, once."""
        style, script = _joined(_STYLES), _joined(_SCRIPTS)
        document = (FOLDER / _DOCUMENT).read_text(encoding="utf-8")
        document = document.replace("/* STYLE */", style).replace("/* SCRIPT */", script)
        self.content = document.encode()
        policy = {
            "default-src": "'none'",
            "connect-src": "'self'",
            "img-src": "data:",  # its icon
            "style-src": _digest(style),
            "script-src": _digest(script),
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        self.headers = {
            "content-security-policy": "; ".join(" ".join(pair) for pair in policy.items()),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def _digest(source: str) -> str:
    """Of an inline element, as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
