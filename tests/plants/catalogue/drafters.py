"""Bugs of drafters, wherever they run."""

from tests.plants.plant import Plant, Way

_ANYWHERE = frozenset({Way.TORCH, Way.SYNC, Way.ASYNC})
_EAGLE3 = "tests/specserve/drafters/test_eagle3.py"
_BLOCKS = "tests/specserve/drafters/test_block_drafter.py"
_NGRAM = "tests/specserve/drafters/test_ngram.py"

PLANTS = [
    Plant(
        name="eagle3-sees-the-entry-it-is-about-to-make",
        file="specserve/drafters/eagle3.py",
        symbol="Eagle3Drafter.draft",
        was="before = [length - 1 for length in lengths]",
        becomes="before = list(lengths)",
        tests=(f"{_EAGLE3}::test_a_chain_equals_causal_passes_over_everything_before_it",),
        breaks="chains attend to an entry that was made for another token, or by nobody",
        ways=_ANYWHERE,
    ),
    Plant(
        name="eagle3-features-shifted-by-one",
        file="specserve/drafters/eagle3.py",
        symbol="Eagle3Drafter.draft",
        was="self.context.rows.slots(row, length - 1, length)[0]",
        becomes="self.context.rows.slots(row, max(length - 2, 0), length)[0]",
        tests=(f"{_EAGLE3}::test_a_chain_equals_causal_passes_over_everything_before_it",),
        breaks="chains continue the features of the token before the last",
        ways=_ANYWHERE,
    ),
    Plant(
        name="eagle3-gaps-lose-their-first-token",
        file="specserve/drafters/eagle3.py",
        symbol="Eagle3Drafter._bridge",
        was="is_real = pads <= place",
        becomes="is_real = pads < place",
        tests=(f"{_EAGLE3}::test_behind_pending_tokens_the_chain_feeds_on_its_own_features",),
        breaks="branches are drafted as if the first token in flight were not there",
        ways=frozenset({Way.TORCH, Way.ASYNC}),
    ),
    Plant(
        name="draft-probs-are-verified-behind-the-draw",
        file="specserve/drafters/block_drafter.py",
        symbol="BlockDrafter._draw_all",
        was="""
            asked = self.probs_confidence
            confidences = None if asked is None else asked(0, logits)
            token_ids = sampling.draw(0, logits)
        """,
        becomes="""
            token_ids = sampling.draw(0, logits)
            asked = self.probs_confidence
            confidences = None if asked is None else asked(0, logits)
        """,
        tests=(
            f"{_BLOCKS}::test_probs_confidences_are_asked_before_the_draw_and_only_without_a_head",
        ),
        breaks="confidences are those of distributions that requests have changed",
        ways=_ANYWHERE,
    ),
    Plant(
        name="markov-head-behind-the-anchor-for-ever",
        file="specserve/drafters/block_drafter.py",
        symbol="BlockDrafter._draw_serially",
        was="previous_ids = drawn[-1][:, 0]",
        becomes="previous_ids = anchor_ids",
        tests=(
            "tests/specserve/drafters/test_golden.py::test_every_tensor_of_the_reference_is_reproduced",
        ),
        breaks="every slot is drafted as if it followed the anchor, and acceptance drops",
        ways=_ANYWHERE,
    ),
    Plant(
        name="recurrent-heads-gate-turned-round",
        file="specserve/drafters/markov_head.py",
        symbol="RnnHead._Run.logits",
        was="torch.lerp(candidate.tanh(), self.state, gate.sigmoid())",
        becomes="torch.lerp(self.state, candidate.tanh(), gate.sigmoid())",
        tests=(
            "tests/specserve/drafters/test_golden_rnn.py::test_the_state_after_each_slot_is_compared",
        ),
        breaks="a recurrent head forgets what it should remember from the second slot on",
        ways=_ANYWHERE,
    ),
    Plant(
        name="local-head-prior-in-the-first-slot",
        file="specserve/drafters/local_head.py",
        symbol="_without_prior",
        was="base_logits[:, 1:] -= prior",
        becomes="base_logits -= prior",
        tests=(
            "tests/specserve/drafters/test_local_head.py::test_a_recurrent_head_is_added_from_the_second_token_on",
        ),
        breaks="the first token of every block is drafted as if common tokens were rarer",
        ways=_ANYWHERE,
    ),
    Plant(
        name="noise-by-columns-of-the-draft-vocabulary",
        file="specserve/sampling/draft_sampler.py",
        symbol="log_noise",
        was="layout.target_ids.expand(len(seeds), -1)",
        becomes="torch.arange(len(layout.target_ids)).expand(len(seeds), -1)",
        tests=(
            "tests/specserve/drafters/test_draft_samplers.py"
            "::test_coupled_noise_belongs_to_target_ids_and_absolute_positions",
        ),
        breaks="drafters of a part of the vocabulary sample with other noise than their target",
        ways=_ANYWHERE,
    ),
    Plant(
        name="draws-of-slots-by-one-noise",
        file="specserve/sampling/draft_sampler.py",
        symbol="Sampled._keys",
        was="(layout.positions[:, None] + slots).flatten()",
        becomes="layout.positions.repeat_interleave(num_slots)",
        tests=(
            "tests/specserve/drafters/test_draft_samplers.py"
            "::test_slots_and_branches_do_not_share_their_noise",
        ),
        breaks="the tokens of a block are drawn by one and the same noise",
        ways=_ANYWHERE,
    ),
    Plant(
        name="ngram-matches-between-tokens",
        file="specserve/drafters/ngram.py",
        symbol="_last_occurrence",
        was="if found % _WIDTH == 0:",
        becomes="if found >= 0:",
        tests=(f"{_NGRAM}::test_proposals_equal_a_search_token_by_token",),
        breaks="bytes of two neighbouring tokens are taken for one, and nonsense is proposed",
        ways=_ANYWHERE,
    ),
    Plant(
        name="ngram-repeats-the-anchor",
        file="specserve/drafters/ngram.py",
        symbol="NgramDrafter._continuation",
        was="follow = start + match_len",
        becomes="follow = start + match_len - 1",
        tests=(f"{_NGRAM}::test_what_followed_the_last_occurrence_is_proposed",),
        breaks="prompt lookup proposes the token that is there already",
        ways=_ANYWHERE,
    ),
    Plant(
        name="tokens-in-flight-cut-one-late",
        file="specserve/drafters/uncomputed_tokens.py",
        symbol="UncomputedTokens.truncate",
        was="del tokens[max(0, length - start) :]",
        becomes="del tokens[max(0, length - start + 1) :]",
        tests=(
            "tests/specserve/drafters/test_uncomputed_tokens.py::test_what_was_cut_off_is_not_computed",
        ),
        breaks="a rejected token is computed into the place of the one that was verified",
        ways=_ANYWHERE,
    ),
]
