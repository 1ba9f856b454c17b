"""Bugs of what a target serves: its model's positions, slots and shares, and who looks after it."""

from tests.plants.plant import Plant, Way

_BOTH = frozenset({Way.SYNC, Way.ASYNC})
_TORCH = frozenset({Way.TORCH})
_GOLDEN = "tests/specserve/models/test_golden.py::test_every_tensor_of_the_reference_is_reproduced"
_DEALING = "tests/specserve/models/test_dealing.py"
_DETERMINISM = "tests/specserve/models/test_determinism.py"
_TILED = f"{_DETERMINISM}::test_tiled_products_have_equal_bits_for_any_rows_and_ranks"

PLANTS = [
    # --- the model -------------------------------------------------------------------------------
    Plant(
        name="positions-of-the-first-row",
        file="specserve/models/attention.py",
        symbol="AttentionBatch.positions",
        was="return np.arange(int(counts.sum())) + np.repeat(ends - counts - firsts, counts)",
        becomes="return np.arange(int(counts.sum())) + np.repeat(ends - counts, counts)",
        tests=(
            "tests/specserve/models/test_determinism.py"
            "::test_a_prompt_gives_equal_bits_in_chunks_of_any_size",
            "tests/exactness/test_speculative_decoding.py"
            "::test_a_few_requests_are_those_of_plain_decoding[ngram]",
        ),
        breaks="all rows of a forward but the first are turned by positions of others",
        ways=_TORCH,
    ),
    Plant(
        name="slots-of-the-last-block",
        file="specserve/models/attention.py",
        symbol="AttentionBatch.slots",
        was="(positions := np.arange(end - count, end), table[positions // block_size])",
        becomes="(positions := np.arange(end - count, end), table[(end - 1) // block_size])",
        tests=(
            "tests/specserve/models/test_determinism.py"
            "::test_a_prompt_gives_equal_bits_in_chunks_of_any_size",
        ),
        breaks="tokens before a block's border are kept behind it",
        ways=_TORCH,
    ),
    Plant(
        name="padding-has-logits",
        file="specserve/models/transformer.py",
        symbol="Transformer.logits",
        was='logits[:, self.config.num_known_tokens :] = float("-inf")',
        becomes='logits[:, self.config.num_known_tokens + 1 :] = float("-inf")',
        tests=(
            "tests/exactness/test_padded_vocabulary.py"
            "::test_padding_is_never_answered[ngram-rejection]",
        ),
        breaks="a token that only pads the vocabulary is answered",
        ways=_BOTH,
    ),
    Plant(
        name="smooth-rope",
        file="specserve/models/rope.py",
        symbol="inverse_frequencies",
        was="return (1 - blend) * scaled + blend * frequencies",
        becomes="return blend * scaled + (1 - blend) * frequencies",
        tests=(_GOLDEN,),
        breaks="models with llama3 scaling of rope get worse with every position",
        ways=_TORCH,
    ),
    # --- ranks -----------------------------------------------------------------------------------
    Plant(
        name="last-tile-as-it-is",
        file="specserve/backends/torch/linear.py",
        symbol="TiledLinear.__call__",
        was="padded = torch.nn.functional.pad(x, (0, 0, 0, -num_tokens % self._tile))",
        becomes="padded = x",
        tests=(_TILED,),
        breaks="where nothing is compiled, a token's result depends on how many are beside it",
        ways=_TORCH,
    ),
    Plant(
        name="pieces-of-the-own-share",
        file="specserve/backends/torch/linear.py",
        symbol="fixed_pieces",
        was="width = -(-share.size // PIECES)",
        becomes="width = -(-len(share) // PIECES)",
        tests=(
            f"{_DETERMINISM}::test_all_pieces_of_a_weight_have_one_shape_for_any_number_of_ranks",
        ),
        breaks="where nothing is compiled, bits depend on the number of ranks",
        ways=_TORCH,
    ),
    Plant(
        name="first-rank-has-more",
        file="specserve/models/dealing.py",
        symbol="_bounds",
        was="return [part * number // num_parts for part in range(num_parts + 1)]",
        becomes="return [-(-part * number // num_parts) for part in range(num_parts + 1)]",
        tests=(_DEALING,),
        breaks="rank 0, which samples besides, has the largest share of heads",
        ways=_BOTH,
    ),
    # --- who looks after it ----------------------------------------------------------------------
    Plant(
        name="draft-process-named-as-cause",
        file="specserve/processes/first_cause.py",
        symbol="first_cause",
        was="if isinstance(event, Died) and _may_be_cause(event.child, is_draining=is_draining):",
        becomes="if isinstance(event, Died):",
        tests=(
            "tests/specserve/processes/test_first_cause.py::test_a_draft_process_that_ends_meanwhile_is_no_cause",
        ),
        breaks="a launch that ends names a draft process, on which nobody depends",
        ways=_BOTH,
    ),
    Plant(
        name="pages-of-all-rows-together",
        file="specserve/drafters/context.py",
        symbol="ContextCapacity._memory",
        was="num_tokens = sum(-(-length // BLOCK_SIZE) * BLOCK_SIZE for length in lengths)",
        becomes="num_tokens = -(-sum(lengths) // BLOCK_SIZE) * BLOCK_SIZE",
        tests=(
            "tests/draft_node/test_draft_slots.py"
            "::test_a_shortage_names_the_setting_and_a_value_that_would_do",
        ),
        breaks="the engine.kv_memory that a warning tells to set is still too small",
        ways=_BOTH,
    ),
    Plant(
        name="answers-sampled-from-the-prompt",
        file="target_node/sampler.py",
        symbol="Sampler.sample",
        was="range(ends[i] - rows[i].verify_len - 1, ends[i])",
        becomes="[ends[i] - rows[i].num_logits + k for k in range(rows[i].verify_len + 1)]",
        tests=(
            "tests/target_node/test_node.py"
            "::test_log_probabilities_of_an_answer_are_its_own_beside_those_of_the_prompt",
        ),
        breaks="the first token of an answer is drawn at an early position of its prompt",
        ways=_BOTH,
    ),
    Plant(
        name="stop-strings-armed-by-whole-rounds",
        file="specserve/api/sample_text.py",
        symbol="SampleText._read",
        was="armed = self.num_tokens + position + 1 >= self._min_tokens",
        becomes="armed = self.num_tokens + num_with_text >= self._min_tokens",
        tests=("tests/specserve/api/test_sample_text.py",),
        breaks="with min_tokens, where an answer stops depends on how many tokens a round makes",
        ways=_BOTH,
    ),
]
