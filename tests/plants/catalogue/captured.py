"""Bugs of what is captured once and replayed, as CUDA graphs are."""

from tests.plants.plant import Plant, Way

_CAPTURED = frozenset({Way.CAPTURED, Way.SYNC, Way.ASYNC})
_FORWARD = "tests/device/test_captured.py"
_DRAFTS = "tests/device/test_captured_drafts.py"
_SAMPLING = "tests/device/test_captured_sampling.py"
_ROUNDS = "tests/backends/cuda/test_captured_round.py::test_every_kind_of_rows_under_every_rule"
_FLAT = "tests/backends/cuda/test_padded_attention.py"
_REPLAYED = f"{_FORWARD}::test_what_is_replayed_is_what_would_have_been_run"
_PASSES = f"{_DRAFTS}::test_blocks_are_those_of_a_pass_that_is_not_captured"

PLANTS = [
    Plant(
        name="drafted-tokens-unpenalised",
        file="specserve/backends/cuda/edit_tables.py",
        symbol="_penalise",
        was="(tables.path_ids, tables.path_counts),",
        becomes="",
        tests=(f"{_ROUNDS}[edits-coupled]",),
        breaks="penalties of verified tokens do not know the drafted ones before them",
        ways=_CAPTURED,
    ),
    Plant(
        name="inputs-only-of-the-first-replay",
        file="specserve/backends/cuda/graphs.py",
        symbol="CapturedGraphs.run",
        was="""
            made, replay = self._found[key]
            fill(made)
        """,
        becomes="made, replay = self._found[key]",
        tests=(f"{_DRAFTS}::test_captured_noise_has_the_bits_of_other_noise",),
        breaks="a replay computes again what the graph was made with",
        ways=_CAPTURED,
    ),
    Plant(
        name="graphs-for-any-nucleus",
        file="specserve/backends/cuda/round_shape.py",
        symbol="Cuts.of",
        was="any(params.top_p < 1 for params in cut)",
        becomes="cut[0].top_p < 1",
        tests=(f"{_SAMPLING}::test_every_row_is_cut_as_it_asks_for",),
        breaks="a request with top_p is verified without it beside one that has none",
        ways=_CAPTURED,
    ),
    Plant(
        name="draft-probs-of-the-round-before",
        file="specserve/backends/cuda/round_tables.py",
        symbol="HostTables.fill",
        was="own.probs_rows[:num_logits] = np.where(is_tested, is_tested.cumsum() - 1, 0)",
        becomes="own.probs_rows[:1] = 0",
        tests=(f"{_ROUNDS}[nothing-rejection]",),
        breaks="tokens are verified by distributions that the rows of a round before had",
        ways=_CAPTURED,
    ),
    Plant(
        name="keys-of-the-round-before",
        file="specserve/backends/cuda/round_tables.py",
        symbol="HostTables.fill",
        was="own.keys[:, :num_logits] = integers[:4]",
        becomes="own.keys[:3, :num_logits] = integers[:3]",
        tests=(f"{_ROUNDS}[nothing-rejection]",),
        breaks="recoveries are drawn by the seeds of a round before",
        ways=_CAPTURED,
    ),
    Plant(
        name="padding-in-the-null-block",
        file="specserve/backends/cuda/padded_attention.py",
        symbol="PaddedAttention.fill",
        was="(own[sources] for own in (positions, slots, places))",
        becomes="(own[sources] * (own is not slots or sources > 0) "
        "for own in (positions, slots, places))",
        tests=(f"{_REPLAYED}[qwen3-float32-float32]",),
        breaks="what pads a batch is written where every row's missing keys are read",
        ways=_CAPTURED,
    ),
    Plant(
        name="places-of-tiles-in-place-of-tokens",
        file="specserve/backends/cuda/padded_attention.py",
        symbol="PaddedAttention.run",
        was="return found.reshape(-1, *q.shape[1:]).index_select(0, self._places)",
        becomes="return found.reshape(-1, *q.shape[1:])[: len(q)]",
        tests=(f"{_REPLAYED}[qwen3-float32-float32]",),
        breaks="tokens behind a row of several get what others attend to, or nobody does",
        ways=_CAPTURED,
    ),
    Plant(
        name="tokens-see-what-follows-them",
        file="specserve/backends/cuda/padded_attention.py",
        symbol="PaddedAttention.begin",
        was="self._columns > self.positions.index_select",
        becomes="self._columns > 1 + self.positions.index_select",
        tests=(f"{_FLAT}::test_many_ragged_batches[float32]",),
        breaks="a drafted token is verified by what was drafted behind it",
        ways=_CAPTURED,
    ),
    Plant(
        name="taps-in-any-order-share-a-graph",
        file="specserve/backends/cuda/forward.py",
        symbol="CapturedForward.run",
        was="_Key(self._shape, taps)",
        becomes="_Key(self._shape, tuple(sorted(taps)))",
        tests=(f"{_FORWARD}::test_what_is_tapped_belongs_to_a_graph",),
        breaks="features of layers come in another order than the drafter was trained with",
        ways=_CAPTURED,
    ),
    Plant(
        name="blocks-see-one-key-too-many",
        file="specserve/backends/cuda/padded_blocks.py",
        symbol="PaddedBlocks.begin",
        was="(self._columns < self._seen[:, None])[:, None]",
        becomes="(self._columns <= self._seen[:, None])[:, None]",
        tests=(f"{_PASSES}[dspark vanilla-float32]",),
        breaks="blocks attend to a key behind their context, whoever it belongs to",
        ways=_CAPTURED,
    ),
    Plant(
        name="padding-of-gaps-is-seen",
        file="specserve/backends/cuda/padded_blocks.py",
        symbol="PaddedBlocks.begin",
        was="sees = (sees & (places >= self._pads[:, None, None])) | self._itself",
        becomes="sees = sees.expand(shape.num_blocks, -1, -1) | self._itself",
        tests=(f"{_PASSES}[dspark vanilla-float32]",),
        breaks="branches of few accepted tokens are drafted behind tokens that are not there",
        ways=_CAPTURED,
    ),
    Plant(
        name="padding-keeps-old-features",
        file="specserve/backends/cuda/context_entries.py",
        symbol="_Entries.fill",
        was="""
            self._features[:num_tokens].copy_(features)
            if num_tokens < len(token):
                self._features[num_tokens:].copy_(features[:1])
        """,
        becomes="self._features[:num_tokens].copy_(features)",
        tests=(f"{_PASSES}[dspark vanilla-float32]",),
        breaks="the first token of an update gets features of another request",
        ways=_CAPTURED,
    ),
    Plant(
        name="drafts-overwritten-by-the-next",
        file="specserve/backends/cuda/block_draws.py",
        symbol="_first.own",
        was="x[:num_blocks].clone()",
        becomes="x[:num_blocks]",
        tests=(f"{_PASSES}[dspark vanilla-float32]",),
        breaks="confidences and logits of a batch become those of the next while it is ranked",
        ways=_CAPTURED,
    ),
    Plant(
        name="draft-probs-of-draws-overwritten-by-the-next",
        file="specserve/backends/cuda/block_draws.py",
        symbol="_first",
        was="DraftProbs(draft_probs.ids[:count].clone(), draft_probs.probs[:count].clone())",
        becomes="DraftProbs(draft_probs.ids[:count].clone(), draft_probs.probs[:count])",
        tests=(f"{_PASSES}[dspark vanilla-float32]",),
        breaks="what is shipped is of a later draft batch: the output's distribution changes",
        ways=_CAPTURED,
    ),
]
