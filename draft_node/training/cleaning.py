"""Text cleaning: what is worth reading, what is generated, what was already seen.

Pure functions over strings. Knows nothing about files, domains or tokens.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator

MIN_DOCUMENT_CHARS = 200
MIN_DEDUP_CHARS = 60
_WHITESPACE = re.compile(r"\s+")
_ROFF_FONT = re.compile(r"\\f(?:\(..|\[[^\]]*\]|.)|\\s[+-]?\d|\\[&/,|^%:]")
_ROFF_CHARS = {
    r"\-": "-", r"\e": "\\", r"\(aq": "'", r"\(cq": "'", r"\(oq": "'", r"\(dq": '"',
    r"\(lq": '"', r"\(rq": '"', r"\(bu": "*", r"\(em": "--", r"\(en": "-", r"\(co": "(c)",
    r"\*(Aq": "'", r"\*(C+": "C++", r"\*(L": '"', r"\*(R": '"', r"\ ": " ", r"\~": " ", r"\'": "'",
    r"\`": "`",
}  # fmt: skip
_ROFF_KEEP = {".B", ".I", ".BR", ".IR", ".BI", ".IB", ".RB", ".RI", ".SM", ".Nm", ".Fl", ".Xr"}


def digest(text: str) -> bytes:
    """Hash of a text that ignores case and layout; 8 bytes are plenty at this scale."""
    normal = _WHITESPACE.sub(" ", text).strip().lower()
    return hashlib.blake2b(normal.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def looks_generated(text: str) -> bool:
    """Tables, encodings, minified or binary-like text: large, but nothing to learn from."""
    size = len(text)
    if size < MIN_DOCUMENT_CHARS or "\x00" in text:
        return True
    letters = sum(map(str.isalpha, text))
    digits = sum(map(str.isdigit, text))
    non_ascii = size - len(text.encode("ascii", "ignore"))
    compressed = len(zlib.compress(text.encode("utf-8", "ignore"), 1)) / size
    return (
        letters < 0.4 * size
        or digits > 0.15 * size
        or non_ascii > 0.1 * size
        or size / (text.count("\n") + 1) > 200
        or compressed < 0.10
        or compressed > 0.75
    )


def _roff_line(line: str) -> str | None:
    """One roff line as plain text; None for requests that print nothing."""
    if line.startswith(('.\\"', "'\\\"")):
        return None
    if line.startswith((".", "'")):
        request, _, rest = line.partition(" ")
        if request in {".SH", ".SS", ".Sh", ".Ss"}:
            return "\n" + rest.strip('"')
        if request in {".PP", ".P", ".LP", ".TP", ".Pp", ".sp", ".IP", ".It"}:
            return "\n" + rest.split('"')[1] if rest.startswith('"') else ""
        return rest.replace('"', "") if request in _ROFF_KEEP else None
    return line


def strip_roff(text: str) -> str:
    """A manual page without its mark-up. Rough: enough for language, not for typesetting."""
    lines = [plain for line in text.splitlines() if (plain := _roff_line(line)) is not None]
    body = _ROFF_FONT.sub("", "\n".join(lines))
    for escape, plain in _ROFF_CHARS.items():
        body = body.replace(escape, plain)
    return re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


def drop_seen_paragraphs(text: str, seen: set[bytes]) -> str:
    """The paragraphs not met in earlier documents (licences and boiler-plate repeat a lot)."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        if len(paragraph) >= MIN_DEDUP_CHARS:
            key = digest(paragraph)
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept)


def drop_seen_header(text: str, seen: set[bytes]) -> str:
    """Source code without a leading comment block (licence header) met before."""
    lines = text.splitlines(keepends=True)
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    if length < 3:
        return text
    key = digest("".join(lines[:length]))
    if key in seen:
        return "".join(lines[length:]).lstrip("\n")
    seen.add(key)
    return text


def words(text: str) -> Iterator[re.Match[str]]:
    """Layout-free words and punctuation, the unit of shingles."""
    return re.finditer(r"\w+|[^\w\s]", text)
