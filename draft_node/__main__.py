"""`python -m draft_node`: one draft process, as the supervisor starts it."""

import sys

from specserve.processes.process import die_with_parent, parse_child_arguments, slow_imports


def main() -> int:
    arguments = parse_child_arguments()
    die_with_parent(arguments.parent_pid)
    # Only now the slow imports: a parent that dies meanwhile takes this process along.
    with slow_imports():
        from draft_node.start import run_draft

    return run_draft(arguments)


if __name__ == "__main__":
    sys.exit(main())
