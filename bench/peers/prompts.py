"""What is asked: chat questions, written once by the target's own chat template, as token ids.

Every peer gets the same ids, so no peer's template or tokenizer is part of the comparison.
"""

import asyncio
from pathlib import Path

from specserve.api.call import ChatMessage
from specserve.api.tokenizer import TextTokenizer

_QUESTIONS = (
    "What is the difference between a list and a tuple in Python?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain how vaccines work to a ten-year-old.",
    "Write a function that returns the n-th Fibonacci number, and explain it.",
    "Give me five ideas for a birthday party in a small flat.",
    "Summarise the causes of the First World War.",
    "How do I cook rice so that it does not stick?",
    "Write an email to my landlord asking for a repair of the heating.",
    "What should I see in Rome in two days?",
    "Explain recursion with an example from everyday life.",
    "Translate into French: The train leaves at seven in the morning.",
    "List the planets of the solar system with one fact about each.",
    "Write a poem about the first snow of the winter.",
    "What are the advantages and disadvantages of working from home?",
    "How does a bicycle stay upright?",
    "Write a SQL query for the ten customers who spent the most.",
)


def chat_prompts(target: Path, count: int) -> list[list[int]]:
    """Token ids of `count` prompts; questions come again, numbered, when they run out.

    A model without a chat template is given the question itself.
    """
    tokenizer = TextTokenizer(target)
    try:
        return asyncio.run(_encoded(tokenizer, count))
    finally:
        tokenizer.close()


async def _encoded(tokenizer: TextTokenizer, count: int) -> list[list[int]]:
    found: list[list[int]] = []
    for place in range(count):
        again, question = divmod(place, len(_QUESTIONS))
        text = _QUESTIONS[question]
        if again:
            text = f"{again + 1}. {text}"
        if tokenizer.has_chat_template:
            found.append(await tokenizer.encode_chat([ChatMessage(role="user", content=text)]))
        else:
            found.append(await tokenizer.encode(text))
    return found
