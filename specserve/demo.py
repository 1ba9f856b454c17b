# pyright: strict
"""`python -m specserve.demo`: one question to a real model, without and with speculation.

Starts `specserve launch` plainly and then as `1+1`, with a draft process that drafts ahead; asks
both the same through gRPC, streams the answers, colours the tokens that were drafted and accepted,
and compares texts and speeds. Each service is stopped with SIGINT. Exits with the first code that
is not 0, and with 1 where the texts differ, which they must not.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

import msgspec

from specserve.api.call import ChatMessage
from specserve.api.detokenizer import TokenBytes
from specserve.client import Client
from specserve.errors import SpecserveError
from specserve.model.tokenizer_files import load_tokenizer
from specserve.standard_streams import complain
from specserve.target_source import FETCH_SMOLLM2, SMOLLM2, find_smollm2
from specserve.types import TokenOrigin

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python class for a bank account with deposit, withdraw and balance, and use it.",
)
_MAX_TOKENS = 160
_LISTENING = "listening on "
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
    say = _printer(colours=sys.stdout.isatty())
    plain: list[Answer] = []
    drafted: list[Answer] = []
    for flags, answers in (
        (["--topology", "1+0", "--speculation", "off"], plain),
        (["--topology", "1+1", "--speculation", "async"], drafted),
    ):
        code = _serve(["--target", SMOLLM2, *flags], answers, say)
        if code != os.EX_OK:
            return code
    return _compare(plain, drafted)


def _serve(flags: list[str], answers: list[Answer], say: Callable[[str, bool], None]) -> int:
    """One service from start to stop; what it answers is added to `answers`."""
    words = ["launch", *flags, "--port", "0", "--log-level", "warning"]
    _say(f"$ specserve {' '.join(words)}\n")
    command = [sys.executable, "-m", "specserve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            address = _await_address(service.stdout)
            answered = address is not None and _ask_all(address, answers, say)
        finally:
            service.send_signal(signal.SIGINT)
    if service.returncode != 0 or not answered:
        return service.returncode or 1
    _say("the service stopped cleanly\n\n")
    return os.EX_OK


def _await_address(lines: IO[str]) -> str | None:
    """Until the launch listens; None if it ends before."""
    for line in lines:
        if line.startswith(_LISTENING):
            _say(line)
            return line.removeprefix(_LISTENING).strip()
    return None


def _ask_all(address: str, answers: list[Answer], say: Callable[[str, bool], None]) -> bool:
    """Stream an answer to every question; whether all went well."""
    try:
        with Client(address) as client:
            client.generate("Hello", max_tokens=8)  # the first request meets cold memory
            for question in QUESTIONS:
                _say(f"\n> {question}\n")
                answers.append(_ask(client, question, say))
    except SpecserveError as error:
        complain(str(error))
        return False
    _say("\n")
    return True


def _ask(client: Client, question: str, say: Callable[[str, bool], None]) -> Answer:
    model = find_smollm2()
    assert model is not None, "main has looked"
    token_bytes = TokenBytes(load_tokenizer(model))
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
            say(token_bytes[token_id].decode(errors="replace"), is_accepted)
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
    _say("the texts are equal\n")
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
