"""Bugs of the target's loop: who runs, in which blocks, what is lent, verified and emitted."""

from tests.plants.plant import Plant, Way

_BOTH = frozenset({Way.SYNC, Way.ASYNC})
_SCHEDULER = "tests/target_node/test_scheduler.py"
_RANDOM_LOAD = (
    f"{_SCHEDULER}::test_random_load_never_deadlocks_never_leaks_and_every_sequence_completes"
)
_BLOCKS = "tests/target_node/test_blocks.py"
_AHEAD = "tests/target_node/test_look_ahead.py"
_SPECULATION = "tests/target_node/speculation/test_speculation.py"

PLANTS = [
    # --- blocks and their prefixes ---------------------------------------------------------------
    Plant(
        name="block-of-the-anchor-sealed",
        file="target_node/scheduler.py",
        symbol="Scheduler.commit",
        was="for index in range(len(sequence.block_hashes), sequence.num_computed // size):",
        becomes="for index in range(len(sequence.block_hashes), len(sequence.token_ids) // size):",
        tests=(f"{_SCHEDULER}::test_no_block_is_lent_that_was_not_computed_to_its_end",),
        breaks="the prefix cache lends blocks that hold a rejected draft's KV at their end",
        ways=_BOTH,
    ),
    Plant(
        name="salt-forgotten-on-sealing",
        file="target_node/scheduler.py",
        symbol="Scheduler.commit",
        was="parent = hashes[-1] if hashes else pool.root(sequence.request.cache_salt)",
        becomes='parent = hashes[-1] if hashes else pool.root("")',
        tests=(
            "tests/target_node/test_isolation.py"
            "::test_the_prefix_cache_serves_only_requests_of_the_same_salt",
        ),
        breaks="a salted request's prefix is lent to requests without a salt",
        ways=_BOTH,
    ),
    Plant(
        name="hash-without-parent",
        file="target_node/blocks.py",
        symbol="BlockPool.child",
        was='data = parent + array("q", tokens).tobytes()',
        becomes='data = array("q", tokens).tobytes()',
        tests=(
            f"{_BLOCKS}::test_prefixes_are_not_shared_between_salts_nor_after_a_different_token",
        ),
        breaks="a block is lent to a request whose text before it is another one",
        ways=_BOTH,
    ),
    Plant(
        name="all-of-a-prompt-cached",
        file="target_node/blocks.py",
        symbol="BlockPool.find",
        was="num_full = (len(tokens) - 1) // size if self.prefix_cache else 0",
        becomes="num_full = len(tokens) // size if self.prefix_cache else 0",
        tests=(
            f"{_BLOCKS}::test_a_released_prefix_is_found_again_and_its_last_token_is_left_to"
            "_compute",
        ),
        breaks="a prompt that the cache holds as a whole leaves no token to sample from",
        ways=_BOTH,
    ),
    Plant(
        name="lent-blocks-evictable",
        file="target_node/blocks.py",
        symbol="BlockPool.take",
        was="""
            self._references[block] += 1
            self._evictable.pop(block, None)
        """,
        becomes="self._references[block] += 1",
        tests=(
            f"{_BLOCKS}::test_a_random_history_never_gives_one_block_to_two_owners_and_never_leaks",
        ),
        breaks="a cached block that a request reads is given to another one to write",
        ways=_BOTH,
    ),
    Plant(
        name="logprobs-owed-by-the-cache",
        file="target_node/scheduler.py",
        symbol="Scheduler._prefill_row",
        was="first = max(sequence.num_computed, sequence.num_prompt_logprobs)",
        becomes="first = sequence.num_computed",
        tests=(
            f"{_SCHEDULER}"
            "::test_prompt_logprobs_are_owed_once_even_when_the_prompt_is_cached_or_preempted",
        ),
        breaks="log probabilities of a prompt are told again after a preemption",
        ways=_BOTH,
    ),
    # --- who runs --------------------------------------------------------------------------------
    Plant(
        name="first-gives-way",
        file="target_node/scheduler.py",
        symbol="Scheduler._grow",
        was="victim = self.running[-1]",
        becomes="victim = self.running[0]",
        tests=(_RANDOM_LOAD,),
        breaks="where blocks run out a row runs whose blocks were given away",
        ways=_BOTH,
    ),
    Plant(
        name="chunks-beside-the-budget",
        file="target_node/scheduler.py",
        symbol="Scheduler.next_batch",
        was="budget = self.max_batch_tokens - len(rows)",
        becomes="budget = self.max_batch_tokens",
        tests=(
            f"{_SCHEDULER}::test_a_long_prompt_is_chunked_and_decoding_rows_keep_going_beside_it",
        ),
        breaks="a forward has more tokens than engine.max_batch_tokens",
        ways=_BOTH,
    ),
    Plant(
        name="places-counted-by-rows",
        file="target_node/scheduler.py",
        symbol="Scheduler.room_for_drafts",
        was="return max(0, self.max_batch_tokens - sum(row.num_tokens for row in rows))",
        becomes="return max(0, self.max_batch_tokens - len(rows))",
        tests=(f"{_SCHEDULER}::test_drafts_have_the_places_that_prompts_leave",),
        breaks="beside a prompt's chunk a forward has more tokens than engine.max_batch_tokens",
        ways=_BOTH,
    ),
    Plant(
        name="priority-after-arrival",
        file="target_node/sequence.py",
        symbol="Sequence.order",
        was="return (self.request.priority, self.arrival, self.sample_index)",
        becomes="return (self.arrival, self.request.priority, self.sample_index)",
        tests=(
            f"{_SCHEDULER}"
            "::test_a_lower_priority_number_is_admitted_first_and_equals_go_by_arrival",
        ),
        breaks="requests go by arrival, whatever their priority",
        ways=_BOTH,
    ),
    Plant(
        name="redone-round-drawn-again",
        file="target_node/scheduler.py",
        symbol="Scheduler.redo",
        was="sequence.num_rounds += 1  # what this round drew is never drawn again",
        becomes="",
        tests=(f"{_SCHEDULER}::test_a_round_that_is_done_again_is_another_one",),
        breaks="a round that is computed again is verified by noise that decided already",
        ways=_BOTH,
    ),
    # --- how many are verified -------------------------------------------------------------------
    Plant(
        name="short-drafts-leak-blocks",
        file="target_node/scheduler.py",
        symbol="Scheduler.drafts_with_blocks",
        was="spare = max(0, self.pool.num_free - len(self.running))",
        becomes="spare = max(0, self.pool.num_free)",
        tests=(f"{_SPECULATION}::test_drafts_leave_every_running_row_a_block",),
        breaks="guesses take the blocks that running requests need in the next round",
        ways=_BOTH,
    ),
    Plant(
        name="blocks-dealt-to-the-drafted",
        file="target_node/planning/admission.py",
        symbol="Admission.admit",
        was="in_turn = self._in_turn(self.chosen.rows)",
        becomes="in_turn = self._in_turn([row for row in rows if row.sequence in found])",
        tests=(
            f"{_SPECULATION}::test_whether_a_row_was_drafted_for_does_not_move_another_rows_blocks",
        ),
        breaks="a block that came in time takes those of the row beside, and so decides on it",
        ways=_BOTH,
    ),
    Plant(
        name="the-same-row-first",
        file="target_node/planning/admission.py",
        symbol="Admission._in_turn",
        was="return rows[first:] + rows[:first]",
        becomes="return rows",
        tests=(f"{_SPECULATION}::test_equal_rows_take_turns_where_places_or_blocks_are_short",),
        breaks="where places are short the same requests are drafted for in every round",
        ways=_BOTH,
    ),
    Plant(
        name="verified-beyond-the-end",
        file="target_node/planning/admission.py",
        symbol="Admission._limit",
        was="room = self._sampler.room(row.sequence) - 1",
        becomes="room = self._sampler.room(row.sequence)",
        tests=(f"{_SPECULATION}::test_no_token_is_verified_that_the_answer_has_no_room_for",),
        breaks="the last forward of an answer verifies a token that can never be part of it",
        ways=_BOTH,
    ),
    Plant(
        name="survival-of-the-last",
        file="target_node/planning/acceptance.py",
        symbol="survival_of",
        was="product *= min(confidence, 1.0) if confidence > 0 else 0.0",
        becomes="product = min(max(confidence, 0.0), 1.0)",
        tests=(
            "tests/target_node/planning/test_competing_rows.py"
            "::test_what_is_no_confidence_is_none_for_every_policy",
        ),
        breaks="a place is verified for its own confidence, whatever stands before it",
        ways=_BOTH,
    ),
    Plant(
        name="drafts-dropped-by-content",
        file="target_node/scheduler.py",
        symbol="Scheduler.with_drafts",
        was="if not verify_len:",
        becomes="if not verify_len or speculation.token_ids[0] == row.sequence.token_ids[-1]:",
        tests=(
            "tests/exactness/test_asynchronous_distribution.py"
            "::test_throws_have_their_distribution[in time-rejection]",
        ),
        breaks="a draft that only repeats its anchor is not verified, so repetitions are too rare",
        ways=_BOTH,
    ),
    Plant(
        name="chain-confident-after-the-draw",
        file="specserve/drafters/chain_steps.py",
        symbol="ChainSteps.run",
        was="self._token_ids.append(self.sampling.draw(slot, logits))",
        becomes="""
            self._token_ids.append(self.sampling.draw(slot, logits))
            if self._confidences:
                probs = logits.softmax(dim=-1)
                self._confidences[-1] = probs.gather(2, self._token_ids[-1][:, :, None])[:, :, 0]
        """,
        tests=(
            "tests/specserve/drafters/test_chain_steps.py"
            "::test_confidences_are_those_of_the_distributions_whatever_is_drawn",
        ),
        breaks="whether a drafted token is verified depends on which one it is",
        ways=_BOTH | {Way.TORCH},
    ),
    Plant(
        name="head-confident-after-the-draw",
        file="specserve/drafters/block_drafter.py",
        symbol="BlockDrafter._drawn",
        was="previous_ids = torch.cat([anchor_ids[:, None], drawn.token_ids[:, :-1]], dim=1)",
        becomes="previous_ids = drawn.token_ids",
        tests=(
            "tests/specserve/drafters/test_block_drafter.py"
            "::test_confidences_never_depend_on_the_token_they_judge",
        ),
        breaks="a confidence head is asked about a token with the token itself before it",
        ways=_BOTH | {Way.TORCH},
    ),
    # --- what is emitted -------------------------------------------------------------------------
    Plant(
        name="min-tokens-counted-anew",
        file="target_node/sampler.py",
        symbol="Sampler._commit",
        was="num_held_back=max(0, sampling.min_tokens - sequence.num_generated),",
        becomes="num_held_back=sampling.min_tokens,",
        tests=(
            "tests/target_node/test_node.py"
            "::test_an_end_of_sequence_token_stops_unless_ignored_and_never_before_min_tokens",
            "tests/exactness/test_speculative_decoding.py"
            "::test_a_few_requests_are_those_of_plain_decoding[language model]",
        ),
        breaks="end tokens after min_tokens do not end the answer",
        ways=_BOTH,
    ),
    Plant(
        name="prefix-taken-after-allocation",
        file="target_node/scheduler.py",
        symbol="Scheduler._take_blocks",
        was="""
            pool.take(blocks)
            sequence.block_ids = blocks + pool.allocate(missing)
        """,
        becomes="""
            sequence.block_ids = blocks + pool.allocate(missing)
            pool.take(blocks)
        """,
        tests=(
            f"{_SCHEDULER}::test_a_prefix_is_not_evicted_to_make_room_for_the_row_that_found_it",
        ),
        breaks="a prefix that was found is evicted and erased for the row that found it",
        ways=_BOTH,
    ),
    Plant(
        name="ahead-without-room",
        file="target_node/scheduler.py",
        symbol="Scheduler.look_ahead",
        was="if missing + len(self.running) > self.pool.num_free:",
        becomes="if missing > self.pool.num_free + len(self.running):",
        tests=(f"{_AHEAD}::test_it_is_made_if_the_worst_case_fits_and_leaves_each_row_a_block",),
        breaks="a row of the round that was made ahead gives way within it",
        ways=_BOTH,
    ),
    Plant(
        name="ahead-forgets-who-waits",
        file="target_node/scheduler.py",
        symbol="Scheduler.next_batch",
        was="if ahead and not self.waiting:",
        becomes="if ahead:",
        tests=(f"{_AHEAD}::test_what_comes_meanwhile_is_scheduled_in_sequence",),
        breaks="requests are admitted a round later, or never while others decode",
        ways=_BOTH,
    ),
    Plant(
        name="ahead-runs-who-has-ended",
        file="target_node/scheduler.py",
        symbol="Scheduler.next_batch",
        was="row.sequence.block_ids and self._grow(row.sequence)",
        becomes="self._grow(row.sequence)",
        tests=(f"{_AHEAD}::test_who_has_ended_is_not_in_it",),
        breaks="an aborted request decodes on, without blocks",
        ways=_BOTH,
    ),
    Plant(
        name="resumed-rows-run-last",
        file="target_node/scheduler.py",
        symbol="Scheduler._admit",
        was="bisect.insort(self.running, sequence, key=lambda s: s.order)",
        becomes="self.running.append(sequence)",
        tests=(f"{_SCHEDULER}::test_who_is_urgent_gives_way_to_nobody_that_was_admitted_before",),
        breaks="an urgent request gives its blocks to later and less urgent ones",
        ways=_BOTH,
    ),
]
