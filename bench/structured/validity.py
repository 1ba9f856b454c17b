# pyright: strict
"""Whether answers keep to their forms, and are the same with speculation as without.

A *whole* answer ended by itself and is judged as `bench.structured.forms` has it. One that its
limit of tokens *cut* has to be the beginning of a text that the grammar allows, which the grammar's
own matcher says: there is no other judge of beginnings.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.services.service import ASYNC, OFF, SYNC
from bench.structured.asking import Answered, Asked, ask_all
from bench.structured.forms import FORMS
from specserve.grammars.compiler import GrammarCompiler, compiler_of
from specserve.models.config import read_spec
from specserve.processes.local_service import local_service
from specserve.types import FinishReason

MODES: dict[str, tuple[str, ...]] = {
    OFF: ("--speculation", OFF),
    SYNC: ("--speculation", SYNC),
    ASYNC: ("--speculation", ASYNC, "--topology", "1+1"),
}


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one mode. `accept_len`: tokens of a round that verified drafts."""

    num_whole: int
    num_cut: int
    num_equal: int  # token by token as without speculation
    accept_len: float | None


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """`problems` has to be empty, and every mode's answers equal."""

    num_requests: int
    max_tokens: int
    at_once: int
    by_mode: dict[str, Counted]
    whole_by_form: dict[str, tuple[int, int]]  # of so many, without speculation
    problems: list[str]  # each names mode and request

    @property
    def is_sound(self) -> bool:
        all_equal = all(each.num_equal == self.num_requests for each in self.by_mode.values())
        return all_equal and not self.problems


def ask_modes(
    target: Path,
    flags: Sequence[str],
    requests: Sequence[Asked],
    *,
    at_once: int,
    max_tokens: int,
    is_chat: bool,
    advance: Callable[[str], None],
) -> dict[str, list[Answered]]:
    """All requests of every mode, from one service after the other."""
    found: dict[str, list[Answered]] = {}
    for mode, own in MODES.items():
        with local_service(["--target", str(target), *flags, *own]) as address:
            asking = ask_all(
                address,
                requests,
                at_once=at_once,
                max_tokens=max_tokens,
                is_chat=is_chat,
                advance=lambda what, mode=mode: advance(f"{mode}, {what}"),
            )
            found[mode] = asyncio.run(asking)
    return found


def examine(
    target: Path,
    requests: Sequence[Asked],
    answers: Mapping[str, Sequence[Answered]],
    *,
    at_once: int,
    max_tokens: int,
) -> Validity:
    """Judge every answer of every mode, whichever they are equal to."""
    grammars = compiler_of(target, read_spec(target))
    problems = [
        f"{mode}, request {asked.number} ({asked.form.name}): {problem}"
        for mode, found in answers.items()
        for asked, answered in zip(requests, found, strict=True)
        if (problem := problem_of(asked, answered, grammars)) is not None
    ]
    return Validity(
        num_requests=len(requests),
        max_tokens=max_tokens,
        at_once=at_once,
        by_mode={mode: _counted(found, answers[OFF]) for mode, found in answers.items()},
        whole_by_form=_whole_by_form(requests, answers[OFF]),
        problems=problems,
    )


def problem_of(asked: Asked, answered: Answered, grammars: GrammarCompiler) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if answered.finish_reason is FinishReason.STOP:
        return asked.form.problem(answered.text)
    if answered.finish_reason is not FinishReason.LENGTH:
        return f"ended with {answered.finish_reason}"
    place = grammars.compile(asked.form.grammar).result().begin()
    count = place.num_allowed(answered.token_ids)
    if count < len(answered.token_ids):
        return f"cut, and token {count} is one that the grammar forbids"
    return None


def _counted(found: Sequence[Answered], plain: Sequence[Answered]) -> Counted:
    num_drafts = sum(each.num_drafts for each in found)
    num_accepted = sum(each.num_accepted for each in found)
    return Counted(
        num_whole=sum(each.finish_reason is FinishReason.STOP for each in found),
        num_cut=sum(each.finish_reason is FinishReason.LENGTH for each in found),
        num_equal=sum(
            (one.token_ids, one.text, one.finish_reason)
            == (other.token_ids, other.text, other.finish_reason)
            for one, other in zip(found, plain, strict=True)
        ),
        accept_len=1 + num_accepted / num_drafts if num_drafts else None,
    )


def _whole_by_form(
    requests: Sequence[Asked], answers: Sequence[Answered]
) -> dict[str, tuple[int, int]]:
    asked, whole = Counter[str](), Counter[str]()
    for request, answered in zip(requests, answers, strict=True):
        asked[request.form.name] += 1
        whole[request.form.name] += answered.finish_reason is FinishReason.STOP
    return {form.name: (whole[form.name], asked[form.name]) for form in FORMS if asked[form.name]}
