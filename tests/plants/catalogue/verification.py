"""Bugs of verification: which drafted tokens stand, what follows them, and what is kept of it."""

from tests.plants.plant import Plant, Way

_SYNC = frozenset({Way.SYNC})
_TORCH = frozenset({Way.TORCH})
_DISTRIBUTION = (
    "tests/exactness/test_engine_distribution.py::test_a_few_answers_have_their_distribution"
)
_EQUAL = "tests/exactness/test_speculative_decoding.py::test_a_few_requests_are_those_of_plain"
_LOSSLESS = f"{_EQUAL}_decoding[language model]"
_CAPTURED = "tests/backends/cuda/test_captured_round.py::test_every_kind_of_rows_under_every_rule"
_ENUMERATED = (
    "tests/exactness/enumeration/test_methods.py"
    "::test_the_distribution_of_the_output_is_that_of_plain_decoding"
)

PLANTS = [
    Plant(
        name="mixed-rows-shifted",
        file="target_node/sampler.py",
        symbol="Sampler._outcomes",
        was="found = self.backend.verify(logits, to_verify, draft_probs)",
        becomes="found = self.backend.verify(logits.roll(1, 0), to_verify, draft_probs)",
        tests=(f"{_DISTRIBUTION}[rejection]",),
        breaks="of rows of several methods, one is verified by the logits of the row before",
        ways=_SYNC | _TORCH,
    ),
    Plant(
        name="equal-rows-shifted",
        file="specserve/backends/torch/verification.py",
        symbol="_by_equality",
        was="drawn = sample(part.logits, batch).token_ids.tolist()",
        becomes="drawn = sample(part.logits, batch).token_ids.roll(1).tolist()",
        tests=(_LOSSLESS,),
        breaks="a row gets the token of the row before",
        ways=_SYNC | _TORCH,
    ),
    Plant(
        name="draft-probs-of-the-next-block",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft.draft_probs",
        was="rows = [place * size + k for place, length in places for k in range(length)]",
        becomes="""
            last = len(draft_probs.ids) - 1
            rows = [
                min((place + 1) * size + k, last) for place, length in places for k in range(length)
            ]
        """,
        tests=(f"{_DISTRIBUTION}[foreseeable]",),
        breaks="drafted tokens are verified by the probabilities of another row's block",
        ways=_SYNC,
    ),
    Plant(
        name="bonus-of-the-row-before",
        file="specserve/sampling/verification/verify.py",
        symbol="prefix_ends",
        was="return spans.starts + num_accepted",
        becomes="return spans.starts + num_accepted.minimum((spans.verify_lens - 1).clamp(min=0))",
        tests=(f"{_ENUMERATED}[close draft-rejection]",),
        breaks="the token behind a block that stands as a whole is drawn as the one before it",
        ways=_TORCH,
    ),
    # --- what stands -----------------------------------------------------------------------------
    Plant(
        name="ratio-of-weights",
        file="specserve/sampling/sampling.py",
        symbol="TargetDistributions.at",
        was="probs = (weights.double() / self.totals).to(weights.dtype)",
        becomes="probs = weights.clone()",
        tests=(f"{_ENUMERATED}[close draft-rejection]",),
        breaks="too many drafted tokens stand: weights are taken for probabilities",
        ways=_TORCH,
    ),
    Plant(
        name="residual-forgotten",
        file="specserve/sampling/verification/verify.py",
        symbol="by_ratio",
        was="weights = residual_probs(target.rows(ends), draft_probs.rows(ends))",
        becomes="weights = target.rows(ends)",
        tests=(f"{_ENUMERATED}[close draft-rejection]",),
        breaks="what follows a rejected token is drawn from the target's whole distribution",
        ways=_TORCH,
    ),
    Plant(
        name="residual-of-either-side",
        file="specserve/sampling/verification/ratio.py",
        symbol="residual_probs",
        was="residual = draft_probs.subtracted_from(target_probs).clamp_(min=0.0)",
        becomes="residual = draft_probs.subtracted_from(target_probs).abs_()",
        tests=(f"{_ENUMERATED}[far draft-rejection]",),
        breaks="a token that was rejected may be drawn right after",
        ways=_TORCH,
    ),
    Plant(
        name="stands-behind-a-rejected-one",
        file="specserve/sampling/verification/verify.py",
        symbol="leading_accepts",
        was="return _row_by_row(accepted, spans).cumprod(dim=1).sum(dim=1)",
        becomes="return _row_by_row(accepted, spans).sum(dim=1)",
        tests=(f"{_ENUMERATED}[close draft-coupled]",),
        breaks="tokens behind a rejected one count as if they stood in its place",
        ways=_TORCH,
    ),
    Plant(
        name="impossible-drafts-stand",
        file="specserve/sampling/verification/verify.py",
        symbol="by_ratio",
        was="sound = draft_probs.sound(logits.shape[1]) & (draft_probs.at(spans.drafted) > 0)",
        becomes="sound = draft_probs.sound(logits.shape[1])",
        tests=(f"{_CAPTURED}[nothing-rejection]",),
        breaks="a distribution that was not its token's is subtracted all the same",
        ways=_TORCH,
    ),
    # --- what is kept of a round -----------------------------------------------------------------
    Plant(
        name="one-more-committed",
        file="specserve/sampling/verification/commit.py",
        symbol="commit_of",
        was="for token_id in (*drafted[:num_accepted], next_token):",
        becomes="for token_id in (*drafted[: num_accepted + 1], next_token):",
        tests=(f"{_ENUMERATED}[close draft-rejection]",),
        breaks="the token that was rejected stays, and the recovery token follows it",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="draft-probs-of-the-first-round",
        file="target_node/speculation/drafting.py",
        symbol="ColocatedDraft.draft_probs",
        was="draft_probs, size = self._drawn.draft_probs, self._drawn.token_ids.shape[1]",
        becomes="""
            draft_probs, size = self._drawn.draft_probs, self._drawn.token_ids.shape[1]
            known = self.__dict__.setdefault("_probs_of", {})
            draft_probs = known.setdefault(draft_probs.ids.shape, draft_probs)
        """,
        tests=(
            "tests/exactness/test_asynchronous_distribution.py"
            "::test_throws_have_their_distribution[any mode-foreseeable]",
        ),
        breaks="distributions are those of an earlier round of as many rows",
        ways=_SYNC,
    ),
    Plant(
        name="rejected-kv-kept",
        file="target_node/batch.py",
        symbol="ForwardBatch.of",
        was="""
            token_ids += sequence.token_ids[start:end]
            token_ids += row.drafted
        """,
        becomes="""
            known = sequence.__dict__.setdefault("computed", {})
            wanted = (*sequence.token_ids[start:end], *row.drafted)
            token_ids += [known.setdefault(place, t) for place, t in enumerate(wanted, start)]
        """,
        tests=(_LOSSLESS,),
        breaks="what follows a rejected token is computed as the one that was rejected",
        ways=_SYNC,
    ),
    Plant(
        name="end-held-back-once-more",
        file="specserve/sampling/verification/commit.py",
        symbol="commit_of",
        was="if len(token_ids) > num_held_back and token_id in end_token_ids:",
        becomes="if num_accepted >= num_held_back and token_id in end_token_ids:",
        tests=(
            "tests/specserve/sampling/test_verification_commit.py"
            "::test_commits_are_those_of_plain_decoding",
        ),
        breaks="a block that ends the answer before min_tokens does end it",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="tokens-behind-the-end",
        file="specserve/sampling/verification/commit.py",
        symbol="commit_of",
        was="return Commit(token_ids, min(num_accepted, len(token_ids)), reason, failed=False)",
        becomes="return Commit(token_ids, num_accepted, reason, failed=False)",
        tests=(
            "tests/specserve/sampling/test_verification_commit.py"
            "::test_commits_are_those_of_plain_decoding",
        ),
        breaks="an answer that ends within a block counts more accepted tokens than it has",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="last-token-verified-by-nothing",
        file="specserve/sampling/verification/method.py",
        symbol="accepted_prefix",
        was="return AcceptedPrefix(num_accepted, drawn[num_accepted], _NO_TOKEN in drawn)",
        becomes="return AcceptedPrefix(num_accepted, drawn[-1], _NO_TOKEN in drawn)",
        tests=(_LOSSLESS,),
        breaks="after a rejection the token behind the whole block follows",
        ways=_SYNC | _TORCH,
    ),
    # --- noise -----------------------------------------------------------------------------------
    Plant(
        name="nonces-shared",
        file="target_node/sampler.py",
        symbol="Sampler.state",
        was="seed=request.seed,",
        becomes="seed=request.seed if request.seeded_by_user else 0,",
        tests=(f"{_DISTRIBUTION}[rejection]",),
        breaks="all requests without a seed draw by the same noise",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="sample-indices-shared",
        file="target_node/sampler.py",
        symbol="Sampler.state",
        was="sample_index=sequence.sample_index,",
        becomes="",
        tests=(f"{_DISTRIBUTION}[rejection]",),
        breaks="the samples of a request draw by the noise of its first",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="acceptance-by-recovery-noise",
        file="specserve/backends/cuda/captured_round.py",
        symbol="CapturedRound._tested",
        was="uniforms=once.uniform(Purpose.ACCEPTANCE),",
        becomes="uniforms=once.uniform(Purpose.RECOVERY),",
        tests=(f"{_CAPTURED}[nothing-rejection]",),
        breaks="what follows a rejected token is drawn by the noise that rejected it",
        ways=frozenset({Way.CAPTURED}),
    ),
    # --- penalties along the drafted path --------------------------------------------------------
    Plant(
        name="drafted-path-forgotten",
        file="specserve/sampling/state.py",
        symbol="SamplingState.along",
        was="""
            state = states[-1].fork()
            state.append(token_id)
        """,
        becomes="""
            state = states[-1].fork()
            state.position += 1
            state.num_generated += 1
        """,
        tests=(
            "tests/specserve/sampling/test_sampling.py"
            "::test_rows_of_a_drafted_path_match_decoding_it_token_by_token",
        ),
        breaks="penalties of a drafted token's successors do not count it",
        ways=_SYNC | {Way.ASYNC},
    ),
    Plant(
        name="forks-share-their-path",
        file="specserve/sampling/state.py",
        symbol="PenaltyState.fork",
        was="copy._later = self._later or ()",
        becomes="copy._later = ()",
        tests=(
            "tests/specserve/sampling/test_state.py"
            "::test_forks_of_forks_count_as_a_state_of_their_own_would",
        ),
        breaks="penalties along a drafted path know its last token alone",
        ways=_SYNC | {Way.ASYNC},
    ),
]
