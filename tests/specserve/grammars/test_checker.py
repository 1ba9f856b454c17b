"""The door: grammars that cannot be had are refused, and harm nobody but who compiles them."""

import asyncio
import re
import signal

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specserve.errors import InvalidField, Unsupported
from specserve.grammars.checker import GrammarChecker
from specserve.grammars.compiler import Vocabulary
from specserve.grammars.source import MAX_CHARS
from specserve.types import Grammar, GrammarKind

GOOD = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}', "good")
SLOW = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 99991}', "slow")
REFUSED = {
    "no JSON": (GrammarKind.JSON_SCHEMA, "{", "a schema is a JSON object, which .*truncated$"),
    "true": (GrammarKind.JSON_SCHEMA, "true", "which this is not: Expected object, got bool$"),
    "no schema": (GrammarKind.JSON_SCHEMA, '{"type": "objet"}', "Invalid type: objet"),
    "unsupported": (GrammarKind.JSON_SCHEMA, '{"not": {}}', '"not".*"x-guidance"'),
    "no regex": (GrammarKind.REGEX, "(", "unclosed group$"),
    "looks around": (GrammarKind.REGEX, "(?<=a)b", "look-around.* is not supported"),
    "no grammar": (GrammarKind.GRAMMAR, "hello", "Expected ::=.*Lark's EBNF.*GBNF"),
    "unknown rule": (GrammarKind.GRAMMAR, "start: foo", 'unknown name: "foo"'),
    "unknown token": (GrammarKind.GRAMMAR, 'start: "a" <|nobody|>', "unknown special token"),
    "impossible": (GrammarKind.REGEX, "[a&&b]", "there is no text that it allows"),
    "too long": (
        GrammarKind.REGEX,
        "a" * (MAX_CHARS + 1),
        f"65537 characters; the limit is {MAX_CHARS}",
    ),
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    """Bytes, and two special tokens: the second is the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=["<more>", "<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the the the"], trainer)
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Vocabulary(str(folder), tokenizer.get_vocab_size(), (1,))


def check(vocabulary: Vocabulary, *grammars: Grammar, limit_s: float = 1.0) -> list[str]:
    """What one checker says of each, one after the other; empty: it may pass."""

    async def run() -> list[str]:
        checker, said = GrammarChecker(lambda: vocabulary, limit_s), []
        try:
            for grammar in grammars:
                try:
                    await checker.check(grammar)
                    said.append("")
                except InvalidField as error:
                    said.append(str(error))
        finally:
            await checker.close()
        return said

    return asyncio.run(run())


@pytest.fixture(scope="module")
def said(vocabulary: Vocabulary) -> dict[str, str]:
    """By one process, which outlives them all."""
    grammars = [Grammar(kind, text, "its name") for kind, text, _ in REFUSED.values()]
    *problems, good = check(vocabulary, *grammars, GOOD)
    assert good == ""
    return dict(zip(REFUSED, problems, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_field_and_what_is_wrong(said: dict[str, str], name: str):
    assert said[name].startswith("its name: ")
    assert re.search(REFUSED[name][2], said[name]), said[name]


def test_one_that_takes_too_long_ends_no_other(vocabulary: Vocabulary):
    slow_said, good = check(vocabulary, SLOW, GOOD, limit_s=0.1)
    assert re.fullmatch(
        "slow: takes more than 0.1 s or .* to compile; make it smaller.*", slow_said
    )
    assert good == ""


def test_where_no_text_ends_none_is_served(vocabulary: Vocabulary):
    endless = msgspec.structs.replace(vocabulary, end_token_ids=())
    with pytest.raises(Unsupported, match=r"^good: is not served here: .* no end-of-sequence"):
        check(endless, GOOD)


def test_nor_does_one_that_the_compiler_dies_of(vocabulary: Vocabulary):
    async def run() -> None:
        checker = GrammarChecker(lambda: vocabulary, limit_s=60)
        await checker.check(GOOD)
        waiting = asyncio.create_task(checker.check(SLOW))
        await asyncio.sleep(0.1)  # it has the turn, and takes longer than this
        assert checker._child is not None
        checker._child.send_signal(signal.SIGSEGV)  # as an exhausted stack does
        with pytest.raises(InvalidField, match="32 MiB of stack"):
            await waiting
        await checker.check(msgspec.structs.replace(GOOD, text='{"type": "array"}'))
        await checker.close()

    asyncio.run(run())


def test_who_leaves_takes_the_answer_with_him(vocabulary: Vocabulary):
    """The next one is not told what another's grammar came to."""

    async def run() -> None:
        checker = GrammarChecker(lambda: vocabulary, limit_s=60)
        await checker.check(GOOD)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await checker.check(SLOW)
        await checker.check(msgspec.structs.replace(GOOD, text='{"type": "array"}'))
        await checker.close()

    asyncio.run(run())
