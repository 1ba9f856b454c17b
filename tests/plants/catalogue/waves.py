"""Bugs of the waves that a draft process drafts."""

from tests.plants.plant import Plant, Way

PLANTS = [
    Plant(
        name="draft-keys-without-sample",
        file="draft_node/waves.py",
        symbol="WaveDrafter._sampled",
        was="sample_indices=[branch.report.sample_index for branch in branches],",
        becomes="sample_indices=[0] * len(branches),",
        tests=(
            "tests/exactness/test_asynchronous_law.py"
            "::test_samples_of_a_request_are_independent[foreseeable]",
        ),
        breaks="the samples of one request share their proposals",
        ways=frozenset({Way.ASYNC}),
    ),
]
