"""Bugs of compiled kernels."""

from tests.plants.plant import Plant, Way

_COMPILED = frozenset({Way.COMPILED, Way.SYNC, Way.ASYNC})
_DISTRIBUTIONS = "specserve/sampling/distribution_kernels.py"
_RATIO = "tests/specserve/sampling/test_compiled_ratio.py"
_TRUNCATION = "specserve/sampling/truncation_kernels.py"
_CUT = "tests/specserve/sampling/test_truncation_kernels.py"
_LAYERS = "specserve/backends/cpu/layer_kernels.py"
_BLOCKS = "tests/specserve/drafters/test_block_drafter.py"
_STEPS = "tests/specserve/drafters/test_compiled_steps.py"

_SELF_TEST = (
    "tests/backends/cpu/test_products_choice.py::test_what_is_compiled_here_passes_its_self_test"
)
PLANTS = [
    Plant(
        name="counter-words-change-places",
        file="specserve/backends/cpu/noise.py",
        symbol="word_floats",
        was="np.uint32(blocks[block_row, place]), position, sample_word, purpose_word",
        becomes="np.uint32(blocks[block_row, place]), sample_word, position, purpose_word",
        tests=("tests/specserve/test_noise.py::test_compiled_words_are_those_of_the_definition",),
        breaks="a seeded text is another where noise is compiled",
        ways=_COMPILED,
    ),
    Plant(
        name="queries-see-the-token-behind-them",
        file=_LAYERS,
        symbol="_attend_to_own",
        was="end - count + 1 + (query + i) // per_kv",
        becomes="end - count + 1 + (query + i + 1) // per_kv",
        tests=(_SELF_TEST,),
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
            "tests/backends/cpu/test_compiled_passes.py::test_chains_are_those_of_torch[qwen3-rows3-lengths3]",
        ),
        breaks="branches behind contexts of one length are drafted behind the first of these",
        ways=frozenset({Way.COMPILED, Way.ASYNC}),
    ),
    Plant(
        name="padding-of-gaps-in-their-own-pages",
        file="specserve/backends/cpu/passes.py",
        symbol="CompiledPasses._with_gaps",
        was="of_pages.append(self._spare[-1])",
        becomes="of_pages.append(pages[place])",
        tests=(f"{_BLOCKS}::test_a_gap_laid_out_longer_than_it_is_changes_nothing",),
        breaks="what pads a gap is written over the pending tokens that were accepted",
        ways=frozenset({Way.COMPILED, Way.ASYNC}),
    ),
]
