# pyright: strict
"""Flags of `specserve launch` that a bench was told or made up, read before anything is started."""

import argparse
import shlex
from collections.abc import Sequence
from typing import NoReturn

from bench.services.service import Service
from specserve.commands.service_options import add_service_options, read_config
from specserve.errors import InvalidField
from specserve.processes.launch import resolve_here
from specserve.settings.config import Config


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would end the process."""

    def __init__(self, field: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._field = field
        add_service_options(self)

    def error(self, message: str) -> NoReturn:
        raise InvalidField(self._field, message)


def split_flags(field: str, text: str) -> list[str]:
    """As a shell would. Raises InvalidField naming `field`, where the flags were typed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidField(field, f"{text!r}: {error}") from error


def read_flags(field: str, words: Sequence[str]) -> Config:
    """What they set. Raises InvalidField naming `field` or the setting."""
    return read_config(_Parser(field).parse_args(words))


def settings_of(field: str, words: Sequence[str]) -> dict[str, object]:
    """By "section.key"; None for what is not said. Raises InvalidField naming `field`."""
    return vars(_Parser(field).parse_args(words))


def check_service(field: str, service: Service, flags: Sequence[str]) -> None:
    """As far as can be told without starting it. Raises the SpecserveError of its launch.

    `flags`: of the bench, before the service's own.
    """
    try:
        resolve_here(read_flags(field, [*flags, *service.flags]))
    except InvalidField as error:
        raise InvalidField(field, f"{service.name!r}: {error}") from error
