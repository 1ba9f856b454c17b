# pyright: strict
"""`python -m specserve.demo`: one question to a real model, without and with speculation.

Starts `specserve launch` plainly and then as `1+1`, with a draft process that drafts ahead; asks
both the same through gRPC, streams the answers, colours the tokens that were drafted and accepted,
and compares texts and speeds. Exits with 1 where a service fails, and where the texts differ, which
they must not. Whoever stops the demonstration stops its service.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from specserve.api.call import ChatMessage
from specserve.api.detokenizer import Detokenizer, TokenBytes
from specserve.client import Client
from specserve.errors import SpecserveError
from specserve.models.tokenizer_files import load_tokenizer
from specserve.processes.local_service import local_service
from specserve.processes.standard_streams import complain
from specserve.processes.stop_signals import signal_exit
from specserve.settings.target_source import FETCH_SMOLLM2, SMOLLM2, find_smollm2
from specserve.types import TokenOrigin

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python class for a bank account with deposit, withdraw and balance, and use it.",
)
_MAX_TOKENS = 160
_ACCEPTED, _RESET = "\033[32m", "\033[0m"  # green


class Answer(msgspec.Struct):
    """One answer, and how fast it came."""

    text: str = ""
    num_tokens: int = 0
    num_accepted: int = 0  # of them: drafted before
    decode_s: float = 0.0  # from the first token to the last


def main() -> int:
    """The exit code of the demonstration."""
    if find_smollm2() is None:
        complain(f"SmolLM2 is not installed: {FETCH_SMOLLM2}")
        return os.EX_UNAVAILABLE
    try:
        return _demonstrate(_printer(colours=sys.stdout.isatty()))
    except KeyboardInterrupt:
        return signal_exit(signal.SIGINT)


def _demonstrate(say: Callable[[str, bool], None]) -> int:
    plain: list[Answer] = []
    drafted: list[Answer] = []
    for flags, answers in (
        (["--topology", "1+0", "--speculation", "off"], plain),
        (["--topology", "1+1", "--speculation", "async"], drafted),
    ):
        if not _serve(["--target", SMOLLM2, *flags], answers, say):
            return 1
    return _compare(plain, drafted)


def _serve(flags: list[str], answers: list[Answer], say: Callable[[str, bool], None]) -> bool:
    """One service from start to stop; what it answers is added to `answers`."""
    _say(f"$ specserve launch {' '.join(flags)} --port 0 --log-level warning\n")
    _say("(loads the model; at its first start here it is measured, too, which takes longer)\n")
    try:
        with local_service(flags) as address:
            _say(f"listening on {address}\n")
            _ask_all(address, answers, say)
    except SpecserveError as error:
        complain(str(error))
        return False
    _say("the service stopped\n\n")
    return True


def _ask_all(address: str, answers: list[Answer], say: Callable[[str, bool], None]) -> None:
    """Stream an answer to every question. Raises SpecserveError."""
    with Client(address) as client:
        client.generate("Hello", max_tokens=8)  # the first request meets cold memory
        for question in QUESTIONS:
            _say(f"\n> {question}\n")
            answers.append(_ask(client, question, say))
    _say("\n")


def _ask(client: Client, question: str, say: Callable[[str, bool], None]) -> Answer:
    model = find_smollm2()
    assert model is not None, "main has looked"
    text = Detokenizer(TokenBytes(load_tokenizer(model)))  # tokens may end inside a character
    answer, first_s = Answer(), 0.0
    messages = [ChatMessage("user", question)]
    for delta in client.stream(messages, temperature=0, max_tokens=_MAX_TOKENS):
        first_s = first_s or time.monotonic()
        answer.decode_s = time.monotonic() - first_s
        answer.text += delta.text
        for token_id, origin in zip(delta.token_ids, delta.origins, strict=True):
            is_accepted = origin is TokenOrigin.DRAFTED
            answer.num_tokens += 1
            answer.num_accepted += is_accepted
            say(text.push([token_id]), is_accepted)
    _say("\n")
    return answer


def _compare(plain: list[Answer], drafted: list[Answer]) -> int:
    """Say what speculation changed: speeds, and nothing else."""
    for question, one, other in zip(QUESTIONS, plain, drafted, strict=True):
        _say(f"> {question}\n")
        for name, answer in (("plain", one), ("1+1", other)):
            speed = (answer.num_tokens - 1) / answer.decode_s if answer.decode_s else 0.0
            accepted = f", {answer.num_accepted} of them drafted" if name != "plain" else ""
            _say(f"  {name:>5}: {answer.num_tokens} tokens{accepted}, {speed:.0f} tokens/s\n")
    if [answer.text for answer in plain] != [answer.text for answer in drafted]:
        complain("the texts differ: speculation must not change them")
        return 1
    _say(
        "the texts are equal\n"
        "(drafted by a language model of three layers that was cut from the target, while the "
        "target works)\n"
    )
    return os.EX_OK


def _printer(*, colours: bool) -> Callable[[str, bool], None]:
    """What writes a token: those that were drafted and accepted in green, if there are colours."""

    def say(text: str, is_accepted: bool) -> None:
        _say(f"{_ACCEPTED}{text}{_RESET}" if colours and is_accepted else text)

    return say


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
