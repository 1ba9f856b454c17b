"""Bugs of verification policies and of what they may read."""

from tests.plants.plant import Plant, Way

_BOTH = frozenset({Way.SYNC, Way.ASYNC})
_POLICIES = "tests/target_node/planning/test_policies.py"
_APPENDIX_A = "tests/exactness/enumeration/test_appendix_a.py"
_BUCKETS = "tests/target_node/planning/test_graph_buckets.py"
_STEPS = "tests/target_node/planning/test_step_table.py"
_COMPETING = "tests/target_node/planning/test_competing_rows.py"
_PACE = "tests/target_node/planning/test_pace.py"
_FORECAST = "tests/target_node/planning/test_forecast.py"
_ROWS = "tests/target_node/planning/test_row_chooser.py"
_SNAPSHOT = "tests/target_node/planning/test_snapshot.py"

PLANTS = [
    Plant(
        name="early-stop-dropped",
        file="target_node/planning/policies.py",
        symbol="CausalPolicy.allocate",
        was="taken = int(stops[0]) if len(stops) else len(places.rows)",
        becomes="taken = int(made.argmax())",
        tests=(
            f"{_APPENDIX_A}::test_the_causal_schedule_verifies_nothing_and_is_exact",
            f"{_POLICIES}::test_the_causal_policy_stops_where_the_first_token_loses",
        ),
        breaks="what follows a drafted token decides whether it is verified",
        ways=_BOTH,
    ),
    Plant(
        name="k-of-this-rounds-confidences",
        file="target_node/planning/policies.py",
        symbol="BarrierPolicy.allocate",
        was="count = best_count(facts.before, num_rows,",
        becomes="count = best_count(survivals, num_rows,",
        tests=(f"{_POLICIES}::test_no_token_decides_whether_it_is_verified[barrier]",),
        breaks="the barrier's number of places knows the tokens that it admits",
        ways=_BOTH,
    ),
    Plant(
        name="k-of-the-round-before",
        file="target_node/planning/acceptance.py",
        symbol="LatestSurvivals.pushed",
        was="before = self._by_round.get(number - 2, prior)",
        becomes="before = self._by_round.get(number - 1, prior)",
        tests=(
            f"{_SNAPSHOT}"
            "::test_survivals_of_two_rounds_before_are_told_and_the_priors_where_there_are_none",
        ),
        breaks="the barrier's number of places is that of blocks whose round is not over",
        ways=_BOTH,
    ),
    Plant(
        name="k-with-anchors",
        file="target_node/planning/policies.py",
        symbol="best_count",
        was="return int(made.argmax())",
        becomes="return int(made.argmax()) + num_rows",
        tests=(f"{_POLICIES}::test_k_does_not_count_anchors",),
        breaks="as many tokens more are verified as there are rows",
        ways=_BOTH,
    ),
    Plant(
        name="chains-look-where-rows-compete",
        file="target_node/planning/admission.py",
        symbol="Admission.threshold",
        was="may_look = has_room and not self._budget.compares_rows",
        becomes="may_look = has_room",
        tests=(
            f"{_COMPETING}::test_chains_do_not_look_where_a_policy_holds_rows_against_each_other",
        ),
        breaks="a token that ends its neighbours' chains takes their places, and so admits itself",
        ways=_BOTH,
    ),
    Plant(
        name="prior-cut-to-what-was-drafted",
        file="target_node/planning/admission.py",
        symbol="Admission._facts",
        was="survivals(self.kind(row.sequence))[:limit]",
        becomes="survivals(self.kind(row.sequence))[: len(survival)]",
        tests=(f"{_COMPETING}::test_a_blocks_length_says_nothing_of_how_many_places_there_are",),
        breaks="a token that ends its chain lowers the number of places, and so leaves itself out",
        ways=_BOTH,
    ),
    Plant(
        name="ended-rows-left-in-k",
        file="target_node/planning/admission.py",
        symbol="Admission.forget",
        was="self._last_survivals.pop(sequence, None)",
        becomes="self._last_survivals.setdefault(sequence, LatestSurvivals())",
        tests=(f"{_SNAPSHOT}::test_nothing_is_kept_of_a_sequence_that_has_ended",),
        breaks="what is kept of requests that have ended grows for ever",
        ways=_BOTH,
    ),
    Plant(
        name="ties-by-row-first",
        file="target_node/planning/policies.py",
        symbol="by_survival",
        was="order = np.lexsort((rows, positions, -values))",
        becomes="order = np.lexsort((rows, -positions, -values))",
        tests=(
            f"{_POLICIES}::test_equal_places_go_by_position_and_then_by_row",
            f"{_POLICIES}::test_no_token_decides_whether_it_is_verified[barrier]",
        ),
        breaks="a later token of a row takes the place of an earlier one, and so admits it",
        ways=_BOTH,
    ),
    Plant(
        name="costs-of-the-round-before-in-the-snapshot",
        file="target_node/planning/admission.py",
        symbol="Admission.begin",
        was="self._known = self._known_next or self._write_down(rows)",
        becomes="self._known = self._write_down(rows)",
        tests=(f"{_SNAPSHOT}::test_a_rounds_time_is_known_one_round_later_or_two[True-2]",),
        breaks="how long drafting this round's blocks held up the target decides on their tokens",
        ways=frozenset({Way.ASYNC}),
    ),
    Plant(
        name="table-refreshed-within-the-snapshot",
        file="target_node/planning/admission.py",
        symbol="Admission._facts",
        was="costs = self._costs(rows, prices)",
        becomes="""
            assert self._prices is not None
            costs = self._costs(rows, self._prices.freeze())
        """,
        tests=(f"{_SNAPSHOT}::test_a_rounds_time_is_known_one_round_later_or_two[True-2]",),
        breaks="what a step takes is read after the blocks were drawn that it decides about",
        ways=frozenset({Way.ASYNC}),
    ),
    Plant(
        name="paces-of-this-round",
        file="target_node/planning/admission.py",
        symbol="Admission._weights",
        was="known = self._known.weights",
        becomes="known = weights_of(row.sequence for row in rows)",
        tests=(f"{_PACE}::test_a_pace_is_known_one_round_later_or_two",),
        breaks="how long drafting took and what was just made decide on the drafted tokens",
        ways=_BOTH,
    ),
    Plant(
        name="weights-of-other-rows",
        file="target_node/planning/policies.py",
        symbol="by_survival",
        was="values = values * np.array(weights)[rows]",
        becomes="values = values * np.array(weights)[::-1][rows]",
        tests=(f"{_PACE}::test_the_barriers_places_go_to_the_row_that_is_behind",),
        breaks="places go to neighbours of the requests that are behind what they ask for",
        ways=_BOTH,
    ),
    Plant(
        name="stairs-become-a-slope",
        file="target_node/planning/step_table.py",
        symbol="ends_of_steps",
        was="places = np.searchsorted(edges, num_tokens)",
        becomes="places = np.full(len(num_tokens), len(edges))",
        tests=(f"{_STEPS}::test_what_is_padded_takes_what_it_is_padded_to",),
        breaks="a forward that is padded to a graph's size seems to grow dearer token by token",
        ways=_BOTH,
    ),
    Plant(
        name="forwards-of-prompts-teach-steps",
        file="target_node/planning/step_table.py",
        symbol="StepTable.observe",
        was="if end != size.num_tokens:",
        becomes="if end < size.num_tokens:",
        tests=(f"{_BUCKETS}::test_what_was_not_padded_says_nothing_of_steps",),
        breaks="what a graph takes is averaged with forwards that have none",
        ways=_BOTH,
    ),
    Plant(
        name="runners-without-edges",
        file="target_node/runner.py",
        symbol="Runner.__init__",
        was="StepTable(backend.step_edges(deterministic=deterministic))",
        becomes="StepTable()",
        tests=(f"{_BUCKETS}::test_a_runner_s_table_has_the_edges_of_its_backend",),
        breaks="admission does not know of graphs: free places in a bucket seem to cost something",
        ways=_BOTH,
    ),
    Plant(
        name="rows-and-keys-are-free",
        file="target_node/planning/step_table.py",
        symbol="FrozenSteps.at",
        was="return Steps(self, self.slopes.seconds(num_rows, num_keys), self._pace)",
        becomes="return Steps(self, 0.0, self._pace)",
        tests=(f"{_STEPS}::test_rows_and_keys_add_their_share",),
        breaks="rounds over long contexts are planned as if these cost nothing",
        ways=_BOTH,
    ),
    Plant(
        name="global-under-the-ratio-test",
        file="specserve/settings/resolve.py",
        symbol="_check_policy",
        was='if policy == "global" and speculation.verification != VerificationMethod.COUPLED:',
        becomes='if policy == "global" and speculation.verification == "rejection":',
        tests=(
            "tests/specserve/settings/test_resolve.py"
            "::test_a_policy_is_refused_where_it_is_not_exact_or_lacks_something",
        ),
        breaks="a search over current confidences runs under the foreseeable method",
        ways=_BOTH,
    ),
    Plant(
        name="modes-chosen-by-the-round-before",
        file="target_node/speculation/auto.py",
        symbol="AutoSpeculation.propose",
        was="self._num_first_calls = self._backend.num_first_calls",
        becomes="self._num_first_calls = self._backend.num_first_calls\nself.learn()",
        tests=(
            "tests/target_node/speculation/test_auto.py"
            "::test_a_round_is_heard_of_once_the_next_ones_mode_is_chosen",
        ),
        breaks="how long a round took decides on blocks that were drawn while it ran",
        ways=_BOTH,
    ),
    Plant(
        name="forecasts-that-are-not-frozen",
        file="target_node/planning/forecast.py",
        symbol="SynchronousRounds.freeze",
        was="acceptance=self.acceptance.freeze()",
        becomes="acceptance=self.acceptance",
        tests=(f"{_FORECAST}::test_what_is_learned_counts_once_somebody_refreshes",),
        breaks="what a round accepted decides on the mode of blocks that were drawn meanwhile",
        ways=_BOTH,
    ),
    Plant(
        name="drafts-that-take-no-time",
        file="target_node/planning/drafted_rounds.py",
        symbol="DraftedRound.seconds",
        was="return self.draft_s + self.verify_s",
        becomes="return self.verify_s",
        tests=(
            "tests/target_node/planning/test_drafts_pay.py"
            "::test_what_drafts_bring_is_held_against_what_they_take",
        ),
        breaks="a drafter that is slower than what it brings is asked for ever",
        ways=frozenset({Way.SYNC}),
    ),
    Plant(
        name="rows-that-bring-most-are-left-out",
        file="target_node/planning/drafted_rounds.py",
        symbol="ExpectedDrafts.by_worth",
        was="np.argsort(-self.standing[",
        becomes="np.argsort(self.standing[",
        tests=(f"{_ROWS}::test_a_row_of_which_nothing_stands_is_left_out_and_the_others_are_not",),
        breaks="where not all drafts pay, the good ones are not made",
        ways=frozenset({Way.SYNC}),
    ),
    Plant(
        name="once-left-out-for-ever",
        file="target_node/planning/row_chooser.py",
        symbol="RowChooser.choose",
        was="for row in ranked[num_paying:]:",
        becomes="for row in ranked[:0]:",
        tests=(f"{_ROWS}::test_a_row_that_was_left_out_is_drafted_for_again",),
        breaks="a row whose first drafts were bad has none for hundreds of rounds",
        ways=frozenset({Way.SYNC}),
    ),
    Plant(
        name="drafts-of-the-round-itself-are-timed",
        file="target_node/planning/draft_pace.py",
        symbol="DraftPace.freeze",
        was="found._drafts, found._entering = self._drafts.freeze(), self._entering.freeze()",
        becomes="found._drafts, found._entering = self._drafts, self._entering",
        tests=("tests/target_node/planning/test_draft_pace.py::test_what_is_frozen_stays",),
        breaks="what a draft took decides on the mode of blocks that were drawn meanwhile",
        ways=_BOTH,
    ),
    Plant(
        name="who-drafts-is-read-as-the-round-begins",
        file="target_node/speculation/auto.py",
        symbol="AutoSpeculation._choose",
        was="self._load_of(rows), self._seen.unusable",
        becomes="self._load_of(rows), self._unusable()",
        tests=(
            "tests/target_node/speculation/test_auto_drafts.py"
            "::test_who_drafts_is_known_from_before_a_rounds_blocks_were_drawn",
        ),
        breaks="a draft process that dies over a block decides on the mode that would verify it",
        ways=frozenset({Way.ASYNC}),
    ),
    Plant(
        name="rejected-features-are-kept",
        file="target_node/speculation/feature_cache.py",
        symbol="FeatureCache._project",
        was="kept, from_behind = np.unique(slots[::-1], return_index=True)",
        becomes="kept, from_behind = np.unique(slots, return_index=True)",
        tests=(
            "tests/target_node/speculation/test_feature_cache.py"
            "::test_of_a_slot_that_was_written_twice_the_last_counts[True]",
        ),
        breaks="drafters read what was computed of tokens that were rejected",
        ways=_BOTH,
    ),
]
