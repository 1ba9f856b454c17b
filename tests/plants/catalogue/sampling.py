"""Bugs of sampling: edits, truncation, temperature, ties, noise, what is told of it."""

from tests.plants.plant import Plant, Way

_TORCH = frozenset({Way.TORCH})
_COMPILED = frozenset({Way.COMPILED})
_SAMPLING = "tests/specserve/sampling/test_sampling.py"
_LIKELIEST = f"{_SAMPLING}::test_the_likeliest_tokens_are_enough_wherever_they_are_taken_for_all"
_BINS = f"{_SAMPLING}::test_thresholds_by_bins_have_the_bits_of_the_full_sort"
_DEFINED = f"{_SAMPLING}::test_float64_probs_equal_the_definition"
_DRAWING = "tests/specserve/sampling/test_draft_sampler.py"
_KEYS = "tests/specserve/sampling/test_draft_probs.py"

PLANTS = [
    # --- edits -----------------------------------------------------------------------------------
    Plant(
        name="repetition-rewards",
        file="specserve/sampling/batch.py",
        symbol="apply_edits",
        was="values = (values / repetition).where(values > 0, values * repetition)",
        becomes="values = values / repetition",
        tests=(_DEFINED,),
        breaks="repetition_penalty makes unlikely tokens that were seen likelier",
        ways=_TORCH,
    ),
    Plant(
        name="presence-of-the-prompt",
        file="specserve/sampling/batch.py",
        symbol="apply_edits",
        was="values -= presence * (edits.counts > 0)",
        becomes="values -= presence",
        tests=(_DEFINED,),
        breaks="presence_penalty counts tokens of the prompt that were never generated",
        ways=_TORCH,
    ),
    Plant(
        name="bias-of-another-row",
        file="specserve/sampling/batch.py",
        symbol="LogitEdits.of",
        was="biased = [(row, state) for row, state in enumerate(states) if state.has_bias]",
        becomes="biased = list(enumerate(state for state in states if state.has_bias))",
        tests=(f"{_SAMPLING}::test_a_row_has_the_same_bits_alone_and_in_any_batch",),
        breaks="logit_bias of a request is that of a neighbour as soon as one of them has none",
        ways=_TORCH,
    ),
    # --- truncation and temperature --------------------------------------------------------------
    Plant(
        name="nucleus-before-top-k",
        file="specserve/sampling/truncation.py",
        symbol="truncate",
        was="""
            if truncation.max_top_k > 0:
                weights = _apply_top_k(scaled, weights, truncation)
            if truncation.any_top_p:
                weights = _apply_top_p(scaled, weights, truncation)
        """,
        becomes="""
            if truncation.any_top_p:
                weights = _apply_top_p(scaled, weights, truncation)
            if truncation.max_top_k > 0:
                weights = _apply_top_k(scaled, weights, truncation)
        """,
        tests=(_DEFINED,),
        breaks="top_p is of all tokens instead of those that top_k leaves",
        ways=_TORCH,
    ),
    Plant(
        name="nucleus-too-small",
        file="specserve/sampling/truncation.py",
        symbol="_place_of",
        was="return is_short.sum(dim=1, keepdim=True).clamp_(max=held.shape[1] - 1)",
        becomes="return (is_short.sum(dim=1, keepdim=True) - 1).clamp_(0, held.shape[1] - 1)",
        tests=(_DEFINED,),
        breaks="the nucleus of top_p lacks the token that completes it",
        ways=_TORCH,
    ),
    Plant(
        name="ties-broken-by-top-k",
        file="specserve/sampling/truncation.py",
        symbol="_apply_top_k",
        was="return weights.masked_fill(scaled < threshold, 0.0)",
        becomes="""
            order = scaled.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            is_beyond = order >= truncation.top_k.unsqueeze(1)
            return weights.masked_fill(is_beyond & (threshold > float("-inf")), 0.0)
        """,
        tests=(f"{_SAMPLING}::test_tokens_that_tie_at_a_threshold_stay_together",),
        breaks="of tokens that are equally likely top_k keeps those with low ids",
        ways=_TORCH,
    ),
    Plant(
        name="ties-behind-the-likeliest-forgotten",
        file="specserve/sampling/truncation.py",
        symbol="likeliest",
        was="""
            threshold = torch.where(cuts, ordered.gather(1, place).squeeze(1), float("-inf"))
            few = few.masked_fill(ordered < threshold.unsqueeze(1), 0.0)
            is_all |= last < threshold
        """,
        becomes="""
            threshold = torch.where(cuts, ordered.gather(1, place).squeeze(1), float("-inf"))
            few = few.masked_fill(ordered < threshold.unsqueeze(1), 0.0)
            is_all |= last <= threshold
        """,
        tests=(_LIKELIEST,),
        breaks="of tokens that are equally likely top_p keeps those that were looked at",
        ways=_TORCH,
    ),
    Plant(
        name="nucleus-of-a-torn-top-k",
        file="specserve/sampling/truncation.py",
        symbol="likeliest",
        was="are_all=bool((is_all & ~is_torn).all())",
        becomes="are_all=bool(is_all.all())",
        tests=(_LIKELIEST,),
        breaks="where many tokens tie with the k-th, top_p is of those that were looked at",
        ways=_TORCH,
    ),
    Plant(
        name="nucleus-of-all-mass",
        file="specserve/sampling/truncation.py",
        symbol="likeliest",
        was="mass = torch.where(is_all, mass, fixed_point_mass(weights, num_tokens).sum(dim=1))",
        becomes="mass = fixed_point_mass(weights, num_tokens).sum(dim=1)",
        tests=(_LIKELIEST,),
        breaks="top_p is of all tokens instead of those that top_k leaves, in mixed batches",
        ways=_TORCH,
    ),
    Plant(
        name="bin-forgets-what-is-above",
        file="specserve/sampling/truncation.py",
        symbol="_threshold_by_bins",
        was="held = member_mass.gather(1, order).cumsum(dim=1).add_(above)",
        becomes="held = member_mass.gather(1, order).cumsum(dim=1)",
        tests=(_BINS,),
        breaks="a nucleus of many tokens has some more of them than top_p asks for",
        ways=_TORCH,
    ),
    Plant(
        name="bin-in-the-order-of-ids",
        file="specserve/sampling/truncation.py",
        symbol="_threshold_by_bins",
        was="held = member_mass.gather(1, order).cumsum(dim=1).add_(above)",
        becomes="held = member_mass.cumsum(dim=1).add_(above)",
        tests=(_BINS,),
        breaks="which tokens end a nucleus of many hangs on their ids",
        ways=_TORCH,
    ),
    Plant(
        name="noise-of-few-by-place",
        file="specserve/sampling/sampling.py",
        symbol="_draw_of_few",
        was="batch.seeds, batch.sample_indices, batch.positions, Purpose.OUTPUT, few.ids",
        becomes="""
            batch.seeds,
            batch.sample_indices,
            batch.positions,
            Purpose.OUTPUT,
            torch.arange(few.ids.shape[1]).expand_as(few.ids),
        """,
        tests=(_LIKELIEST,),
        breaks="a request with top_p draws by other noise than its drafts and its batch know",
        ways=_TORCH,
    ),
    # --- noise -----------------------------------------------------------------------------------
    Plant(
        name="rounds-of-samples-meet",
        file="specserve/noise.py",
        symbol="once_words",
        was="return sample_index | round_id << _SAMPLE_BITS, branch << _PURPOSE_BITS",
        becomes="return sample_index + round_id, branch << _PURPOSE_BITS",
        tests=(f"{_KEYS}::test_no_two_keys_of_a_request_are_one",),
        breaks="a sample's round has the noise of its neighbour's next one",
        ways=_TORCH | _COMPILED,
    ),
    Plant(
        name="branches-meet-purposes",
        file="specserve/noise.py",
        symbol="once_words",
        was="branch << _PURPOSE_BITS",
        becomes="branch",
        tests=(f"{_KEYS}::test_no_branch_of_one_purpose_meets_the_noise_of_another",),
        breaks="a block is drawn by the noise that verifies another one",
        ways=_TORCH | _COMPILED,
    ),
    Plant(
        name="seeds-cut-to-half",
        file="specserve/noise.py",
        symbol="philox_floats",
        was="key = torch.stack((seeds & _MASK, (seeds >> 32) & _MASK))",
        becomes="key = torch.stack((seeds & _MASK, seeds & _MASK))",
        tests=("tests/specserve/test_noise.py",),
        breaks="without numba seeds that differ in their high half alone give one text",
        ways=_TORCH,
    ),
    # --- draft probabilities
    # ------------------------------------------------------------------------------
    Plant(
        name="drafts-drawn-greedily",
        file="specserve/sampling/draft_sampler.py",
        symbol="Sampled._Draws.draw",
        was="winners = (noise / draft_probs.probs).argmin(dim=1, keepdim=True)",
        becomes="winners = draft_probs.probs.argmax(dim=1, keepdim=True)",
        tests=(f"{_DRAWING}::test_tokens_are_drawn_by_their_slots_own_noise",),
        breaks="the likeliest token is drafted and shipped as if it had been drawn",
        ways=_TORCH,
    ),
    Plant(
        name="drafts-at-temperature-1",
        file="specserve/sampling/draft_sampler.py",
        symbol="Sampled._Draws.draw",
        was="draft_probs = DraftProbs.of_entries(ids.flatten(0, 1), weights.flatten(0, 1))",
        becomes="""
            draft_probs = DraftProbs.of_entries(ids.flatten(0, 1), weights.flatten(0, 1))
            flat = DraftProbs.of_entries(ids.flatten(0, 1), gaps.exp().flatten(0, 1))
            draft_probs = DraftProbs(draft_probs.ids, flat.probs)
        """,
        tests=(f"{_DRAWING}::test_a_distribution_is_the_likeliest_tokens_at_the_rows_temperature",),
        breaks="a draft's distribution forgets the request's temperature",
        ways=_TORCH,
    ),
    Plant(
        name="padding-subtracted",
        file="specserve/sampling/draft_probs.py",
        symbol="DraftProbs.joined",
        was="[pad(x.ids, m, value=PAD_ID) for x, m in zip(parts, missing, strict=True)]",
        becomes="[pad(x.ids, m) for x, m in zip(parts, missing, strict=True)]",
        tests=(f"{_KEYS}::test_distributions_of_several_drafters_join_padded",),
        breaks="probabilities of several drafters in a round count as broken, their drafts as none",
        ways=_TORCH,
    ),
    Plant(
        name="path-not-processed",
        file="specserve/sampling/logits_processors.py",
        symbol="ProcessedSampler._Draws._advance",
        was="""
            for state, drawn in zip(self.states, token_ids.tolist(), strict=True):
                for token_id in drawn:
                    state.append(token_id)
            self.processing = None
        """,
        becomes="""
            for state, drawn in zip(self.states, token_ids.tolist(), strict=True):
                for token_id in drawn:
                    state.append(token_id)
        """,
        tests=("tests/specserve/sampling/test_logits_processors.py",),
        breaks="drafts repeat what the request's penalties forbid, and are rejected for it",
        ways=_TORCH,
    ),
    # --- what is told ----------------------------------------------------------------------------
    Plant(
        name="ranks-of-ties",
        file="specserve/sampling/logprobs.py",
        symbol="logprob_columns",
        was="ranks=1 + (logits > values[:, :1]).sum(dim=1),",
        becomes="ranks=(logits >= values[:, :1]).sum(dim=1),",
        tests=("tests/specserve/sampling/test_logprobs.py::test_zeros_of_either_sign_tie",),
        breaks="a token's rank counts those that are only as likely",
        ways=_TORCH,
    ),
    Plant(
        name="logprobs-of-the-anchor",
        file="specserve/backends/torch/verification.py",
        symbol="_add_logprobs",
        was="logits_rows += range(start, start + len(tokens))",
        becomes="""
            end = start + len(row.drafted) + 1
            logits_rows += range(end - len(tokens), end)
        """,
        tests=(
            "tests/exactness/test_speculative_decoding.py"
            "::test_a_few_requests_are_those_of_plain_decoding[language model]",
        ),
        breaks="log probabilities of a round with rejected drafts are those of other tokens",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
]
