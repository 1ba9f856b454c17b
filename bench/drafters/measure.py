"""Runs drafters through the engine under one condition after the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.domains import GreedyCheck, check_greedy, known_texts
from bench.drafter_choice import DrafterChoice, load_choice
from bench.drafters.plan import Condition, Plan
from bench.drafters.results import Cell, make_cell
from bench.in_process import Engine, EngineSize, Job, Speculating
from bench.loops import LoopCount, count_loops
from bench.rounds import Answer
from specserve.drafters.attach_calibration import confidence_head
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.protocol import Drafter
from specserve.models.transformer import Transformer


@dataclass(frozen=True)
class Loaded:
    """A drafter under its label."""

    choice: DrafterChoice
    drafter: Drafter

    @property
    def gamma(self) -> int:
        """Drafted tokens of a round at most."""
        return min(self.choice.gamma, self.drafter.gamma)

    @property
    def gives_confidences(self) -> bool:
        """Whether it says of its own tokens how likely they stand."""
        if confidence_head(self.drafter) is not None:
            return True
        if not isinstance(self.drafter, BlockDrafter | Eagle3Drafter | LanguageModelDrafter):
            return False
        return self.drafter.probs_confidence is not None


class Measurer:
    """One target, the prompts of every domain, and the drafters that are brought along."""

    def __init__(
        self,
        model: Transformer,
        folder: Path,
        candidates: Mapping[str, list[list[int]]],
        plan: Plan,
        advance: Callable[[str], None],
    ) -> None:
        """`candidates`: prompts by domain. `advance` is told what is measured next."""
        self._model = model
        self._folder = folder
        self._plan = plan
        self._advance = advance
        self._candidates = candidates
        self._greedy_texts: dict[str, list[list[int]]] = {}  # one drafter's: all have the same
        longest = max(len(prompt) for some in self._candidates.values() for prompt in some)
        self._size = EngineSize(plan.batch_size, longest + plan.longest_answer)
        self.greedy: dict[str, GreedyCheck] = {}

    @property
    def prompts(self) -> dict[str, list[list[int]]]:
        """By domain, those of temperatures above 0."""
        count = self._plan.num_prompts
        return {domain: some[:count] for domain, some in self._candidates.items()}

    def check_greedy(self) -> None:
        """Find the prompts for temperature 0, if that is wanted and not all of them are asked."""
        if 0.0 not in self._plan.temperatures or not self._plan.domains:
            return
        plain, known = Engine(self._model, self._size), known_texts(self._folder)
        for domain, candidates in self._candidates.items():
            self._advance(f"greedy text of {domain}")
            self.greedy[domain] = check_greedy(
                domain, candidates, plain, self._plan.batch_size, known
            )

    def load(self, choice: DrafterChoice) -> Loaded:
        """Ready to draft here. Raises SpecserveError for what cannot be used."""
        drafter = load_choice(
            choice,
            self._folder,
            self._model,
            num_context_tokens=self._size.num_context_tokens,
            max_positions=self._size.max_positions(choice.gamma, self._model.config),
        )
        return Loaded(choice, drafter)

    def cells(self, loaded: Loaded, *, first_only: bool = False) -> list[Cell]:
        """Whole blocks, under every method, temperature and domain that can be measured.

        `first_only`: the first temperature and method, which sweeps are made under.
        """
        plan = self._plan
        samplings = [
            (temperature, method)
            for temperature in plan.temperatures
            for method in (plan.methods if temperature else plan.methods[:1])
        ]
        return [
            self._cell(
                loaded,
                Condition(
                    domain=domain, temperature=temperature, method=method, max_verify_len=plan.gamma
                ),
            )
            for temperature, method in (samplings[:1] if first_only else samplings)
            for domain in self._candidates
            if temperature or self._is_measurable(domain)
        ]

    def _is_measurable(self, domain: str) -> bool:
        """At temperature 0; where nobody looked at greedy text it is taken as it comes."""
        check = self.greedy.get(domain)
        return check is None or check.is_measurable(self._plan.min_greedy_prompts)

    def gamma_sweep(self, loaded: Loaded, whole: Sequence[Cell]) -> list[Cell]:
        """DSpark, Figure 4: requests that have at most so many tokens drafted.

        `whole` are the drafter's cells with whole blocks, which are not measured again.
        """
        limits = [limit for limit in self._plan.gammas if limit < loaded.gamma]
        return [
            cell if limit is None else self._cell(loaded, _replace(cell, max_verify_len=limit))
            for limit in (*limits, None)
            for cell in self._swept(whole)
        ]

    def threshold_sweep(self, loaded: Loaded, whole: Sequence[Cell]) -> list[Cell]:
        """DSpark, Figure 5: only tokens whose survival reaches the threshold are verified."""
        return [
            self._cell(loaded, _replace(cell, min_survival=least)) if least else cell
            for least in (0.0, *self._plan.thresholds)
            for cell in self._swept(whole)
        ]

    def _swept(self, whole: Sequence[Cell]) -> list[Cell]:
        """The cells that sweeps start from: the first temperature and method."""
        sampling = (self._plan.temperatures[0], self._plan.methods[0])
        return [c for c in whole if (c.condition.temperature, c.condition.method) == sampling]

    def _cell(self, loaded: Loaded, condition: Condition) -> Cell:
        label = loaded.choice.label
        self._advance(f"{label}, {condition.domain}, temperature {condition.temperature:g}")
        speculating = Speculating(
            loaded.drafter,
            condition.method,
            loaded.gamma,
            loaded.choice.num_kept,
            min_survival=condition.min_survival,
        )
        engine = Engine(self._model, self._size, speculating)
        answers = self._answers(engine, condition)
        block_len = min(engine.gamma, condition.max_verify_len)
        return make_cell(label, condition, answers, block_len)

    def _answers(self, engine: Engine, condition: Condition) -> list[Answer]:
        prompts, size = self._chosen(condition), self._plan.batch_size
        answers: list[Answer] = []
        for first in range(0, len(prompts), size):
            batch = prompts[first : first + size]
            job = Job(
                batch,
                seeds=range(first, first + len(batch)),
                num_tokens=self._plan.num_tokens,
                temperature=condition.temperature,
                max_verify_len=condition.max_verify_len,
                ignore_eos=self._plan.ignore_eos,
            )
            answers += engine.run(job).answers
        if condition.temperature == 0:
            texts = [answer.token_ids for answer in answers]
            self._greedy_texts.setdefault(condition.domain, texts)
        return answers

    @property
    def loops(self) -> LoopCount | None:
        """Among greedy answers; None without any."""
        answers = [text for texts in self._greedy_texts.values() for text in texts]
        return count_loops(answers) if answers else None

    def _chosen(self, condition: Condition) -> list[list[int]]:
        check = self.greedy.get(condition.domain)
        if condition.temperature or check is None:
            return self.prompts[condition.domain]
        places = check.qualifying[: self._plan.num_prompts]
        return [self._candidates[condition.domain][place] for place in places]


def _replace(cell: Cell, **changes: float) -> Condition:
    return msgspec.structs.replace(cell.condition, **changes)
