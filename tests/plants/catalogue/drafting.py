"""Bugs of the drafter beside the target."""

from tests.plants.plant import Plant, Way

PLANTS = [
    Plant(
        name="colocated-keys-without-round",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft._sampler",
        was="rounds=[row.sequence.num_rounds for row in rows],",
        becomes="rounds=[0] * len(rows),",
        tests=(
            "tests/exactness/test_asynchronous_distribution.py"
            "::test_throws_have_their_distribution[moody coins drafted here-rejection]",
        ),
        breaks="a miss is drafted again by noise that already decided what is prepared",
        ways=frozenset({Way.ASYNC}),
    ),
    Plant(
        name="samples-share-local-drafts",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft._sampler",
        was="sample_indices = [state.sample_index for state in states]",
        becomes="sample_indices = [0] * len(states)",
        tests=("tests/target_node/speculation/test_colocated_keys.py",),
        breaks="the samples of one request share their proposals",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
    Plant(
        name="draft-probs-of-the-token-before",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft.draft_probs",
        was="place * size + k for place",
        becomes="place * size + max(k - 1, 0) for place",
        tests=(
            "tests/exactness/simulation/test_distribution.py"
            "::test_outputs_have_their_distribution[rejection-rows, by ratio]",
        ),
        breaks="drafted tokens are verified by the probabilities of the token before",
        ways=frozenset({Way.SYNC}),
    ),
    Plant(
        name="drafter-rows-numbered-anew",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft._catch_up",
        was="len(self._row_of) + self._num_ended",
        becomes="len(self._row_of)",
        tests=(
            "tests/exactness/test_speculative_decoding.py"
            "::test_the_target_drafting_for_itself_is_nearly_always_right",
        ),
        breaks="two requests share one context of the drafter, and speculation silently ends",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
]
