"""Bugs of compiled kernels."""

from tests.plants.plant import Plant, Way

_COMPILED = frozenset({Way.COMPILED, Way.SYNC, Way.ASYNC})
_LAWS = "specserve/sampling/law_kernels.py"
_RATIO = "tests/specserve/sampling/test_compiled_ratio.py"
_LIKELIEST = "tests/specserve/sampling/test_race_of_likeliest.py"
_TRUNCATION = "specserve/sampling/truncation_kernels.py"
_CUT = "tests/specserve/sampling/test_truncation_kernels.py"
_LAYERS = "specserve/models/layer_kernels.py"
_BLOCKS = "tests/specserve/drafters/test_block_drafter.py"
_STEPS = "tests/specserve/drafters/test_compiled_steps.py"

PLANTS = [
    Plant(
        name="draws-at-the-first-rows-temperature",
        file=_LAWS,
        symbol="_race_of_likeliest",
        was="logits[row], scales[row], noise[row]",
        becomes="logits[row], scales[0], noise[row]",
        tests=(f"{_LIKELIEST}::test_a_row_is_drawn_by_its_own_temperature_and_noise",),
        breaks="all blocks of a wave are drawn at the temperature of the first",
        ways=_COMPILED,
    ),
    Plant(
        name="noise-of-laws-from-the-end",
        file=_LAWS,
        symbol="draw_of_likeliest",
        was="time = noise[place] / prob",
        becomes="time = noise[num_kept - 1 - place] / prob",
        tests=(f"{_LIKELIEST}::test_a_row_is_drawn_by_its_own_temperature_and_noise",),
        breaks="a rejected round drafts other tokens compiled than by torch",
        ways=_COMPILED,
    ),
    Plant(
        name="recovery-keys-of-the-first-place",
        file=_LAWS,
        symbol="_judge_by_ratio",
        was="rows.keys[:, place : place + 1].copy()",
        becomes="rows.keys[:, start : start + 1].copy()",
        tests=(f"{_RATIO}::test_outcomes_are_torchs[6-300]",),
        breaks="the token that follows is drawn by noise of another position",
        ways=_COMPILED,
    ),
    Plant(
        name="residuals-of-weights-that-do-not-sum-to-one",
        file=_LAWS,
        symbol="_judge_by_ratio",
        was="weights[token] = np.float32(weights[token] / total)",
        becomes="weights[token] = np.float32(weights[token])",
        tests=(f"{_RATIO}::test_tokens_have_the_targets_law",),
        breaks="recovered tokens have another law than the target's",
        ways=_COMPILED,
    ),
    Plant(
        name="tokens-stand-at-their-ratio",
        file=_LAWS,
        symbol="_judge_by_ratio",
        was="np.float64(rows.uniforms[place]) < ratio",
        becomes="np.float64(rows.uniforms[place]) <= ratio",
        tests=(f"{_RATIO}::test_a_token_stands_strictly_below_its_ratio",),
        breaks="an impossible token stands where the variate is zero",
        ways=_COMPILED,
    ),
    Plant(
        name="residuals-of-the-rows-first-law",
        file=_LAWS,
        symbol="_judge_by_ratio",
        was="""
            law = rows.laws[place]
            _leave_residual(weights, rows.law_ids[law], rows.law_probs[law])
        """,
        becomes="""
            law = rows.laws[start]
            _leave_residual(weights, rows.law_ids[law], rows.law_probs[law])
        """,
        tests=(f"{_RATIO}::test_outcomes_are_torchs[1-2]",),
        breaks="what a rejection leaves is what another slot's law leaves",
        ways=_COMPILED,
    ),
    Plant(
        name="noise-by-place-among-the-likely",
        file=_TRUNCATION,
        symbol="_winner",
        was="exponential(bits[0, k, token & 3]) / weights[token]",
        becomes="exponential(bits[0, k, k & 3]) / weights[token]",
        tests=(f"{_CUT}::test_winners_are_those_of_torchs_race[fields0]",),
        breaks="a request with top_p has other tokens compiled than by torch",
        ways=_COMPILED,
    ),
    Plant(
        name="top-k-without-the-last",
        file=_TRUNCATION,
        symbol="_keep_by_rank",
        was="if scaled[token] >= least:",
        becomes="if scaled[token] > least:",
        tests=(f"{_CUT}::test_winners_are_those_of_torchs_race[fields1]",),
        breaks="top_k keeps one token fewer than it says",
        ways=_COMPILED,
    ),
    Plant(
        name="nuclei-one-value-too-large",
        file="specserve/sampling/ranks.py",
        symbol="boundary_of_mass",
        was="np.float64(held + sums[digit]) < needed",
        becomes="np.float64(held + sums[digit]) <= needed",
        tests=(f"{_CUT}::test_what_is_needed_is_enough",),
        breaks="top_p keeps a token more than it says where masses meet it exactly",
        ways=_COMPILED,
    ),
    Plant(
        name="races-at-the-first-rows-temperature",
        file="specserve/backends/cpu/noise_kernel.py",
        symbol="race",
        was="most, temperature = largest(own), temperatures[row]",
        becomes="most, temperature = largest(own), temperatures[0]",
        tests=("tests/specserve/sampling/test_race.py::test_the_winner_has_the_least_time",),
        breaks="all rows of a batch are sampled at the temperature of the first",
        ways=_COMPILED,
    ),
    Plant(
        name="counter-words-change-places",
        file="specserve/backends/cpu/noise_kernel.py",
        symbol="word_floats",
        was="np.uint32(blocks[block_row, place]), position, sample_word, purpose_word",
        becomes="np.uint32(blocks[block_row, place]), sample_word, position, purpose_word",
        tests=("tests/specserve/test_noise.py::test_both_ways_give_the_same_bits",),
        breaks="a seeded text is another where noise is compiled",
        ways=_COMPILED,
    ),
    Plant(
        name="chains-raced-by-the-first-chains-noise",
        file="specserve/backends/cpu/step_kernels.py",
        symbol="draw",
        was="by.noise[by.places[chain, slot]], by.scales[chain]",
        becomes="by.noise[by.places[0, slot]], by.scales[chain]",
        tests=(f"{_STEPS}::test_steps_are_those_of_torch[qwen3-3-coupled-rows1-lengths1]",),
        breaks="all chains of a wave are drawn by the noise of the first",
        ways=_COMPILED,
    ),
    Plant(
        name="calibration-of-the-first-slot",
        file="specserve/backends/cpu/step_kernels.py",
        symbol="_confidence",
        was="exp(-(by.biases[slot] + raw * by.scales[slot]))",
        becomes="exp(-(by.biases[0] + raw * by.scales[0]))",
        tests=(f"{_STEPS}::test_steps_are_those_of_torch[qwen3-3-greedy-rows1-lengths1]",),
        breaks="late tokens of a chain have the confidences of early ones",
        ways=_COMPILED,
    ),
    Plant(
        name="penalties-forget-what-the-block-repeats",
        file="specserve/sampling/shaping_kernels.py",
        symbol="_penalise",
        was="count += other == token",
        becomes="count = count + 0.0 if other == token else count",
        tests=(
            "tests/specserve/sampling/test_shaping.py::test_compiled_rows_lead_to_the_same_tokens",
        ),
        breaks="chains repeat tokens that the target penalises",
        ways=_COMPILED,
    ),
    Plant(
        name="queries-see-the-token-behind-them",
        file=_LAYERS,
        symbol="_attend_to_own",
        was="end - count + 1 + (query + i) // per_kv",
        becomes="end - count + 1 + (query + i + 1) // per_kv",
        tests=(
            "tests/specserve/models/test_compiled_forward.py::test_keys_and_values_are_torchs[qwen3]",
        ),
        breaks="the last head of every group looks one token ahead: prompts are read wrong",
        ways=_COMPILED,
    ),
    Plant(
        name="rows-of-other-contexts-are-alike",
        file=_LAYERS,
        symbol="_num_alike",
        was="if (batch.shared[other] != batch.shared[place]).any():",
        becomes="if len(batch.shared[other]) != len(batch.shared[place]):",
        tests=(
            "tests/specserve/drafters/test_compiled_passes.py::test_chains_are_those_of_torch[qwen3-rows3-lengths3]",
        ),
        breaks="branches behind contexts of one length are drafted behind the first of these",
        ways=frozenset({Way.COMPILED, Way.ASYNC}),
    ),
    Plant(
        name="padding-of-gaps-in-their-own-pages",
        file="specserve/drafters/compiled_passes.py",
        symbol="CompiledPasses._with_gaps",
        was="of_pages.append(self._spare[-1])",
        becomes="of_pages.append(pages[place])",
        tests=(f"{_BLOCKS}::test_a_gap_laid_out_longer_than_it_is_changes_nothing",),
        breaks="what pads a gap is written over the tokens in flight that were accepted",
        ways=frozenset({Way.COMPILED, Way.ASYNC}),
    ),
    Plant(
        name="min-p-alone-ignored",
        file="specserve/sampling/law_kernels.py",
        symbol="_weigh",
        was="if cut[0] > 0 or cut[1] < 1 or cut[2] > 0:",
        becomes="if cut[0] > 0 or cut[1] < 1:",
        tests=("tests/specserve/sampling/test_compiled_ratio.py::test_outcomes_are_torchs",),
        breaks="tokens that min_p forbids are accepted and drawn",
        ways=frozenset({Way.COMPILED, Way.SYNC, Way.ASYNC}),
    ),
    Plant(
        name="wide-nucleus-among-stale-ids",
        file="specserve/sampling/truncation_kernels.py",
        symbol="_keep_by_mass",
        was="""
            num_found = _nucleus(scaled, weights, ids[:num_likely], needed, unit)
            if num_found:
                return num_found
            num_kept = _all_tokens(ids)
        """,
        becomes="""
            num_found = _nucleus(scaled, weights, ids[:num_likely], needed, unit)
            if num_found:
                return num_found
        """,
        tests=(
            "tests/specserve/sampling/test_truncation_kernels.py"
            "::test_the_first_look_is_left_where_it_holds_less_than_is_needed",
        ),
        breaks="a wide nucleus of a large vocabulary has some tokens twice and lacks others",
        ways=frozenset({Way.COMPILED}),
    ),
]
