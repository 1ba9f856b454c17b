"""Bugs of what a draft process knows of each stream: contexts, holes, and blocks it has drafted."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_STREAMS = "tests/draft_node/test_draft_slots.py"
_CACHE = "tests/draft_node/prespeculation/test_speculation_cache.py"
_CONTEXT = "tests/specserve/drafters/test_context.py"

PLANTS = [
    Plant(
        name="segments-in-order-of-arrival",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots._add",
        was="bisect.insort(stream.segments, segment, key=lambda part: part.start)",
        becomes="stream.segments.append(segment)",
        tests=(f"{_STREAMS}::test_pieces_in_any_order_make_the_context_that_one_piece_makes",),
        breaks="a context that came in another order stands still",
        ways=_ASYNC,
    ),
    Plant(
        name="tokens-in-flight-count-as-verified",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots._enter",
        was="""
            if is_verified:
                stream.num_verified = piece.end
        """,
        becomes="stream.num_verified = piece.end",
        tests=(f"{_STREAMS}::test_pending_tokens_enter_and_leave_a_context_of_token_ids",),
        breaks="rejected tokens stay in contexts, and rounds begin behind them",
        ways=_ASYNC,
    ),
    Plant(
        name="reports-one-round-old",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots.take_report",
        was="row.round < stream.report.round",
        becomes="row.round + 1 < stream.report.round",
        tests=(f"{_STREAMS}::test_an_older_report_is_ignored_and_one_of_the_same_round_is_not",),
        breaks="a report that was overtaken takes a stream back to the round before",
        ways=_ASYNC,
    ),
    Plant(
        name="branch-numbers-start-anew",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots._drop_context",
        was="self._forget_segments(stream)",
        becomes="self._forget_segments(stream)\nstream.num_branches.clear()",
        tests=(f"{_STREAMS}::test_branch_numbers_rise_within_a_round_even_if_the_context_is_lost",),
        breaks="after a lost context a round's noise is used twice",
        ways=_ASYNC,
    ),
    Plant(
        name="segments-known-as-far-as-they-begin",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots._next_piece",
        was="if end < min(segment.end, len(stream.token_ids)):",
        becomes="if end < segment.start:",
        tests=(
            f"{_STREAMS}::test_what_differs_is_replaced_from_the_first_difference_on",
            f"{_STREAMS}::test_pending_tokens_enter_and_leave_a_context_of_token_ids",
        ),
        breaks="what was verified is appended behind guesses that were wrong",
        ways=_ASYNC,
    ),
    Plant(
        name="holes-up-to-the-anchor",
        file="draft_node/draft_slot.py",
        symbol="due_hole",
        was="min(stream.segments[0].start, report.position) if stream.segments else",
        becomes="report.position if stream.segments else",
        tests=(f"{_STREAMS}::test_a_round_waits_until_everything_before_its_anchor_is_there",),
        breaks="the target is asked for tokens that are there already",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-of-any-round-follow",
        file="draft_node/prespeculation/speculation_cache.py",
        symbol="_follows",
        was="return block.key == _key_of(row)",
        becomes="return block.key[2:] == _key_of(row)[2:]",
        tests=(f"{_CACHE}::test_a_block_for_another_round_is_not_what_follows_this_one",),
        breaks="a round is explained by a block that was drafted for a later one",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-found-by-their-id-alone",
        file="draft_node/prespeculation/speculation_cache.py",
        symbol="SpeculationCache.settle",
        was="if block is None or not _follows(block, row):",
        becomes="if block is None:",
        tests=(f"{_CACHE}::test_a_block_for_another_anchor_is_not_what_follows_this_one",),
        breaks="outcomes are told from the distributions of a block behind another anchor",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-of-the-round-in-flight-are-forgotten-late",
        file="draft_node/prespeculation/speculation_cache.py",
        symbol="SpeculationCache.settle",
        was="other.key.round > row.round",
        becomes="other.key.round >= row.round",
        tests=(f"{_CACHE}::test_only_the_block_pending_and_those_for_later_rounds_are_kept",),
        breaks="blocks and the logits they were drawn from pile up",
        ways=_ASYNC,
    ),
    Plant(
        name="the-next-pages-are-erased",
        file="specserve/drafters/context.py",
        symbol="ContextRows.reserve",
        was="self._erase(np.array(self._free[-needed:]))",
        becomes="self._erase(np.array(self._free[:needed]))",
        tests=(f"{_CONTEXT}::test_a_page_is_given_to_another_row_without_what_it_held",),
        breaks="a request's keys and values stay in a page that another one gets",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
    Plant(
        name="truncation-keeps-an-empty-page",
        file="specserve/drafters/context.py",
        symbol="ContextRows.truncate",
        was="-(-length // BLOCK_SIZE)",
        becomes="length // BLOCK_SIZE + 1",
        tests=(f"{_CONTEXT}::test_pages_are_neither_lost_nor_shared_over_a_long_life",),
        breaks="contexts that end with a page keep one more than they have tokens for",
        ways=frozenset({Way.SYNC, Way.ASYNC}),
    ),
    Plant(
        name="guesses-stay-where-features-come",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots._next_piece",
        was="if self._drafter.feature_size and segment.end > stream.num_verified:",
        becomes="if self._drafter.feature_size and segment.end < stream.num_verified:",
        tests=(f"{_STREAMS}::test_features_take_the_place_of_pending_tokens",),
        breaks="contexts keep what was guessed where features of verified tokens have arrived",
        ways=_ASYNC,
    ),
    Plant(
        name="second-report-of-a-round-dropped",
        file="draft_node/draft_slots.py",
        symbol="DraftSlots.take_report",
        was="row.round < stream.report.round",
        becomes="row.round <= stream.report.round",
        tests=("tests/target_node/speculation/test_misses.py",),
        breaks="where misses wait, nothing is prepared for the round after",
        ways=_ASYNC,
    ),
    Plant(
        name="truncated-pages-leak",
        file="specserve/drafters/context.py",
        symbol="ContextRows.truncate",
        was="""
            self._free.extend(reversed(table[kept:]))
            del table[kept:]
        """,
        becomes="""
            del table[kept:]
        """,
        tests=(f"{_CONTEXT}::test_pages_are_neither_lost_nor_shared_over_a_long_life",),
        breaks="rejected tokens that reach over a page's end cost their page for good",
        ways=_ASYNC,
    ),
]
