"""Bugs of which outcomes of a round a draft process expects, and in which order."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_COMPILED = frozenset({Way.ASYNC, Way.COMPILED})
_OUTCOMES = "tests/draft_node/prespeculation/test_outcomes.py"
_DISTRIBUTION = "tests/exactness/test_asynchronous_distribution.py"

PLANTS = [
    Plant(
        name="chances-of-more-instead-of-as-many",
        file="draft_node/prespeculation/outcomes.py",
        symbol="outcome_weights",
        was="weights.append(survival - longer)",
        becomes="weights.append(longer)",
        tests=(f"{_OUTCOMES}::test_weights_are_the_distribution_of_the_number_accepted",),
        breaks="outcomes are prepared by chances that belong to one token more",
        ways=_ASYNC,
    ),
    Plant(
        name="rejected-tokens-are-candidates",
        file="draft_node/prespeculation/outcomes.py",
        symbol="rank_candidates",
        was="scores = scores.masked_fill(slots.ids == excluded_ids[:, None], -torch.inf)",
        becomes="scores = scores.masked_fill(slots.ids == NO_TOKEN, -torch.inf)",
        tests=(f"{_OUTCOMES}::test_the_rejected_token_is_no_candidate",),
        breaks="the first candidate of every slot is the token that was just rejected",
        ways=_ASYNC,
    ),
    Plant(
        name="noise-of-the-position-before",
        file="draft_node/prespeculation/candidates.py",
        symbol="_slot_keys",
        was="position = report.position + 1 + number",
        becomes="position = report.position + number",
        tests=(
            "tests/draft_node/prespeculation/test_candidates.py::test_all_tokens_take_part_in_sampling",
        ),
        breaks="outcomes are foreseen by the noise of the token before, and missed",
        ways=_ASYNC,
    ),
    Plant(
        name="excluded-columns-of-the-draft-vocabulary",
        file="draft_node/prespeculation/outcomes.py",
        symbol="rank_all",
        was="torch.where(matches.any(1), matches.int().argmax(1), NO_TOKEN)",
        becomes="matches.int().argmax(1)",
        tests=(
            "tests/draft_node/prespeculation/test_outcomes.py::test_where_every_token_runs_a_reduced_vocabulary_speaks_in_ids_of_the_target",
        ),
        breaks="of a block accepted whole the first token that the drafter knows is no outcome",
        ways=_ASYNC,
    ),
    Plant(
        name="curves-keep-what-they-said-before",
        file="draft_node/prespeculation/fan_out.py",
        symbol="HitCurve.observe",
        was="self._rates = None",
        becomes="pass",
        tests=(
            "tests/draft_node/prespeculation/test_plan.py::test_rates_that_were_asked_for_before_are_those_of_now",
        ),
        breaks="hit rates that were asked for once never change again",
        ways=_ASYNC,
    ),
    Plant(
        name="lateness-of-a-row-counts-as-a-rounds",
        file="draft_node/prespeculation/batch_size.py",
        symbol="DeadlineMargin.settle",
        was="late = self._num_late / self._num_blocks",
        becomes="late = float(self._num_late)",
        tests=(
            "tests/draft_node/prespeculation/test_deadline_margin.py"
            "::test_rows_of_a_round_that_were_late_and_in_time_count_by_their_numbers",
        ),
        breaks="with many rows in a batch drafting soon has next to no time",
        ways=_ASYNC,
    ),
    Plant(
        name="shared-out-by-noise",
        file="draft_node/prespeculation/outcomes.py",
        symbol="rank_all",
        was="ids = places if target_ids is None else target_ids[places]",
        becomes="""
            perturbed = (scores - noise[rows]).topk(2, dim=1).values
            clear = perturbed[:, 0] - perturbed[:, 1]
            best = best.masked_fill((clear < clear.roll(-1))[:, None], -torch.inf)
            ids = places if target_ids is None else target_ids[places]
        """,
        tests=(f"{_DISTRIBUTION}::test_throws_have_their_distribution[odd coins-foreseeable]",),
        breaks="most is prepared where noise that is still to count decides most clearly",
        ways=_ASYNC,
    ),
]
