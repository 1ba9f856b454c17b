"""The subcommands of `specserve`.

Each module has HELP, EXAMPLES, `add_options(parser)` and `run(arguments)`, which returns the exit
code.
"""
