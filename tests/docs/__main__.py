"""`python -m tests.docs`: write docs/api.md, and of docs/errors.md what follows from the code.

Exits with 1 if an error of the code has no row on that page, or a row no error: causes and advice
are written by hand, in a row whose first cell has the beginning that is printed here.
"""

import sys

from tests.docs import api_page, errors_page


def main() -> int:
    """The exit code."""
    api_page.PAGE.write_text(api_page.made(), encoding="utf-8")
    text = errors_page.made(errors_page.read())
    errors_page.PAGE.write_text(text, encoding="utf-8")
    for line in errors_page.unwritten(text):
        sys.stdout.write(f"has no row in docs/errors.md: {line}\n")
    for key in errors_page.stale(text):
        sys.stdout.write(f"is in docs/errors.md and no error, or twice: {key}\n")
    for row in errors_page.silent(text):
        sys.stdout.write(f"says nothing in docs/errors.md: {row}\n")
    is_whole = not (
        errors_page.unwritten(text) + errors_page.stale(text) + errors_page.silent(text)
    )
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
