"""Bugs of the draft batches that a draft process drafts."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_PRESPECULATION = "tests/draft_node/prespeculation/test_prespeculation.py"

PLANTS = [
    Plant(
        name="draft-keys-without-sample",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._sampled",
        was="sample_indices=[branch.report.sample_index for branch in branches],",
        becomes="sample_indices=[0] * len(branches),",
        tests=(
            "tests/exactness/test_asynchronous_distribution.py"
            "::test_samples_of_a_request_are_independent[foreseeable]",
        ),
        breaks="the samples of one request share their proposals",
        ways=_ASYNC,
    ),
    Plant(
        name="branches-counted-by-the-round-in-flight",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._branch_number",
        was="branch.stream.next_branch(branch.key.round)",
        becomes="branch.stream.next_branch(branch.report.round)",
        tests=(f"{_PRESPECULATION}::test_branches_never_share_a_key",),
        breaks="a block that is drafted anew in its round has the noise of one prepared before",
        ways=_ASYNC,
    ),
    Plant(
        name="branches-without-epoch",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._branch_number",
        was="return (self.epoch % _EPOCHS) << _BRANCH_BITS | number",
        becomes="return number",
        tests=(
            f"{_PRESPECULATION}::test_blocks_of_the_rejection_family_ship_the_distribution_they_were_drawn_from",
        ),
        breaks="a draft process that was started anew draws by noise that was used before",
        ways=_ASYNC,
    ),
    Plant(
        name="confidences-that-are-no-numbers",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter.draft",
        was="drawn.confidences.nan_to_num(0.0).clamp(0.0, 1.0)",
        becomes="drawn.confidences.clamp(0.0, 1.0)",
        tests=(
            "tests/draft_node/prespeculation/test_draft_batches.py"
            "::test_a_confidence_that_is_no_number_costs_no_other_block_its_push",
        ),
        breaks="one broken confidence costs a whole draft batch, which the target refuses",
        ways=_ASYNC,
    ),
    Plant(
        name="first-rows-of-a-draft-batch-with-gaps",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="DraftedBatch.push",
        was="[block.place for block in blocks] if len(blocks) < num_drawn",
        becomes="slice(len(blocks)) if len(blocks) < num_drawn",
        tests=(
            "tests/draft_node/prespeculation/test_draft_batches.py::test_blocks_without_a_token_are_left_out",
        ),
        breaks="behind a block without a token, blocks are pushed with the tokens of others",
        ways=_ASYNC,
    ),
    Plant(
        name="draft-batches-of-draft-probs-as-full-as-there-are-outcomes",
        file="draft_node/prespeculation/prespeculation.py",
        symbol="PreSpeculation._take_batch",
        was="fills_up = family[0].kind.needs_probs",
        becomes="fills_up = False",
        tests=(
            f"{_PRESPECULATION}::test_draft_batches_of_the_rejection_family_are_full_and_equally_wide",
        ),
        breaks="how long a draft batch takes tells how many outcomes a drawn block has",
        ways=_ASYNC,
    ),
    Plant(
        name="gaps-with-the-rejected-token",
        file="draft_node/prespeculation/round.py",
        symbol="Round.take_branch",
        was="*self.plan.pending.token_ids[:number])",
        becomes="*self.plan.pending.token_ids[: number + 1])",
        tests=(f"{_PRESPECULATION}::test_blocks_are_what_the_drafter_says_after_each_outcome",),
        breaks="blocks are drafted behind the token that their outcome rejects",
        ways=_ASYNC,
    ),
    Plant(
        name="outcomes-of-this-round",
        file="draft_node/prespeculation/round.py",
        symbol="Round.take_branch",
        was="report.round + 1, report.position + 1 + number, next_id",
        becomes="report.round, report.position + 1 + number, next_id",
        tests=(f"{_PRESPECULATION}::test_blocks_are_what_the_drafter_says_after_each_outcome",),
        breaks="no block that is prepared is ever found by the target",
        ways=_ASYNC,
    ),
    Plant(
        name="penalties-of-branches-add-up",
        file="draft_node/stream_sampling.py",
        symbol="StreamSampling.behind",
        was="state = state.fork()",
        becomes="pass",
        tests=(
            "tests/draft_node/test_stream_sampling.py"
            "::test_states_are_those_of_the_text_whatever_was_asked_before",
        ),
        breaks="blocks are penalised for tokens of other branches, and are refused",
        ways=_ASYNC,
    ),
    Plant(
        name="work-of-draft-batches-by-what-they-accept",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter.draft",
        was="min_gap=min_gap if by_ratio else 0,",
        becomes="min_gap=0,",
        tests=("tests/draft_node/prespeculation/test_batch_work.py",),
        breaks="how long a draft batch takes depends on which pending tokens its outcomes accept",
        ways=_ASYNC,
    ),
    Plant(
        name="gaps-as-long-as-none",
        file="draft_node/prespeculation/prespeculation.py",
        symbol="PreSpeculation._draft",
        was="min_gap = 1 + max(verify_lens, default=-1)",
        becomes="min_gap = 1",
        tests=("tests/draft_node/prespeculation/test_batch_work.py",),
        breaks="how long a draft batch takes depends on which pending tokens its outcomes accept",
        ways=_ASYNC,
    ),
    Plant(
        name="samples-share-coupled-drafts",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._coupled",
        was="[branch.report.sample_index for branch in branches],",
        becomes="[0] * len(branches),",
        tests=("tests/draft_node/prespeculation/test_batch_keys.py",),
        breaks="drafts of a request's further samples guess by the noise of its first",
        ways=_ASYNC,
    ),
    Plant(
        name="keys-of-the-round-that-is-verified",
        file="draft_node/prespeculation/draft_batches.py",
        symbol="BatchDrafter._sampled",
        was="rounds=[branch.key.round for branch in branches],",
        becomes="rounds=[branch.report.round for branch in branches],",
        tests=("tests/draft_node/prespeculation/test_batch_keys.py",),
        breaks="a block may be drawn by the noise of one drafted for the round before",
        ways=_ASYNC,
    ),
]
