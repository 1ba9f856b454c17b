"""Bugs of training, which show in drafters and figures alone."""

from tests.plants.plant import Plant, Way

_TORCH = frozenset({Way.TORCH})
_CHATS = "tests/draft_node/training/chats"

PLANTS = [
    Plant(
        name="figures-of-blocks-that-are-none",
        file="draft_node/training/block_objective.py",
        symbol="BlockObjective.measure",
        was="l1, valid, errors = l1[is_block], valid[is_block], errors[is_block]",
        becomes="pass",
        tests=(
            "tests/draft_node/training/test_block_objective.py::test_figures_are_those_of_blocks_that_something_is_learned_of",
        ),
        breaks="tokens a round of chats are too few, as questions count as rejected blocks",
        ways=_TORCH,
    ),
    Plant(
        name="windows-begin-anywhere-in-chats",
        file="draft_node/training/text_source.py",
        symbol="chats",
        was="(_CHAT,), {_CHAT: starts})",
        becomes="(_CHAT,))",
        tests=(
            f"{_CHATS}/test_store.py::test_chats_are_split_by_number_and_checked_against_the_target",
        ),
        breaks="training reads chats from their middle, as no request ever is",
        ways=_TORCH,
    ),
    Plant(
        name="questions-of-the-run-before-are-asked-again",
        file="draft_node/training/chats/writing.py",
        symbol="ChatWriter.run",
        was="self._questions.take(words)",
        becomes="pass",
        tests=(f"{_CHATS}/test_writing.py::test_a_run_that_goes_on_asks_no_question_again",),
        breaks="a run that goes on asks again what was asked, and repeats its chats",
        ways=_TORCH,
    ),
    Plant(
        name="held-out-by-request",
        file="draft_node/training/chats/store.py",
        symbol="is_held_out",
        was='exchange.number.to_bytes(8, "little")',
        becomes='(exchange.number + 7 * len(exchange.prompt_ids)).to_bytes(8, "little")',
        tests=(f"{_CHATS}/test_store.py::test_every_kind_of_chat_is_held_out_and_whole",),
        breaks="second turns are trained on whose first turns are measured with",
        ways=_TORCH,
    ),
]
