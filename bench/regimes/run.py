"""One run: prompts, then contest after contest, and what has been found so far.

Whoever stops it keeps what was measured: results are handed over after every setting.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from bench.command_line import progress_bar
from bench.conversations import prepare_questions
from bench.domains import CHECKED_TOKENS
from bench.drafter_choice import DrafterChoice
from bench.in_process import Engine, EngineSize
from bench.machine import describe_machine
from bench.prompt_choice import ChosenPrompts
from bench.regimes.arms import FAN_OUT, Contest, Entrants
from bench.regimes.machine_load import client_beside
from bench.regimes.measure import Found, Interleaved
from bench.regimes.plan import Plan
from bench.regimes.prompts import CHECK_BATCH, PromptChoice, Prompts, choose_prompts
from bench.regimes.records import Setting
from bench.regimes.results import Results, Row, Served, loops_in, rows_of
from bench.regimes.service import kv_memory_flags, running
from bench.regimes.summary import summarise
from specserve.backends.choose import choose_backend
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.models.loader import is_stored_in_16_bits, load_model
from specserve.models.parallel import TensorParallel

_CHECK_ROOM = 512  # tokens of the longest prompt whose greedy text is looked at


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    target: Path
    plan: Plan
    drafters: dict[str, DrafterChoice]  # by label
    ballasts: dict[str, int]  # parameters by name; 0: none
    is_pinned: bool
    device: str
    dtype: str
    kv_dtype: str | None
    command: str
    chosen: ChosenPrompts | None = None  # None: held-out texts by domain

    @property
    def keeps_16_bits(self) -> bool:
        """Whether the services do."""
        if choose_backend(torch.device(self.device)).name != "cpu":
            return False
        return self.dtype != "float32" or is_stored_in_16_bits(self.target)

    @property
    def flags(self) -> list[str]:
        """Of every service."""
        flags = ["--target", str(self.target), "--device", self.device, "--dtype", self.dtype]
        flags += ["--generation-config", "none"]  # what is not asked for changes no sampling
        flags += [] if self.kv_dtype is None else ["--kv-dtype", self.kv_dtype]
        if not self.is_pinned or self.device == "cuda":  # one GPU may have to do for both
            flags.append("--oversubscribe")
        return flags


class Run:
    """Measures everything that the options ask for."""

    def __init__(
        self,
        options: Options,
        runner: asyncio.Runner,
        console: Console,
        keep: Callable[[Results], None],
    ) -> None:
        """`keep` is called with all results so far, again and again."""
        self._options = options
        self._plan = options.plan
        self._runner = runner
        self._console = console
        self._keep = keep
        self._began_s = time.monotonic()
        self._machine = describe_machine()
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        self._found: Found = {}
        self._rows: dict[Setting, list[Row]] = {}
        self._num_summed: dict[Setting, int] = {}  # groups behind those rows
        self._choice = PromptChoice({}, {}, [])
        self._kv_dtype = ""  # as services say
        self._prompts = f"Held-out texts: {', '.join(options.plan.domains)}"

    def results_of_everything(self) -> Results:
        """All of it, or what there was when somebody pressed Ctrl-C."""
        try:
            if self._options.chosen is None:
                self._console.print("looking at greedy text", style="dim")
                self._choice = self._choose_prompts()
            else:
                self._console.print("answering the first turns of conversations", style="dim")
                self._ask(self._options.chosen)
            self._measure()
        except KeyboardInterrupt:
            self._console.print("stopped; what was measured is kept", style="yellow")
            return self._results(is_complete=False)
        return self._results(is_complete=True)

    def _ask(self, chosen: ChosenPrompts) -> None:
        """From now on, every turn of a conversation is one prompt."""
        questions = prepare_questions(chosen, self._options.target, self._plan.num_tokens)
        self._choice = PromptChoice.of(questions)
        self._prompts = questions.line
        num_requests = len(questions.asked)
        few = self._plan.num_side_prompts * num_requests // questions.num_conversations
        self._plan = msgspec.structs.replace(
            self._plan,
            num_prompts=num_requests,
            num_side_prompts=min(few, num_requests),
            ignore_eos=not questions.is_chat,
        )

    def _choose_prompts(self) -> PromptChoice:
        """Looked at by the model without ballast: the same distribution."""
        if 0.0 not in self._plan.temperatures:
            return choose_prompts(self._options.target, self._plan, None, _CHECK_ROOM)
        torch.set_num_threads(1)
        model = load_model(
            self._options.target,
            dtype=torch.float32,
            backend=choose_backend(torch.device("cpu")),
            parallel=TensorParallel(),
            deterministic=True,
        )
        plain = Engine(model, EngineSize(CHECK_BATCH, _CHECK_ROOM + CHECKED_TOKENS))
        return choose_prompts(self._options.target, self._plan, plain, _CHECK_ROOM)

    # --- contests -----------------------------------------------------------------------------

    def _measure(self) -> None:
        plan = self._plan
        # Cores that a target could have instead of a draft process: of a GPU they are no part.
        num_cores = len(self._cores) if self._options.device == "cpu" else 1
        contests = Entrants(
            plan=plan, drafters=self._options.drafters, num_cores=num_cores
        ).contests()
        work = [
            (ballast, contest)
            for ballast in plan.ballasts
            for contest in contests
            if ballast == plan.ballasts[0] or FAN_OUT not in contest.name
        ]
        total = sum(
            1 + sum(len(self._groups(s, contest)) for s in self._settings(ballast, contest))
            for ballast, contest in work
        )
        with progress_bar(total, self._console) as advance:
            for ballast, contest in work:
                if self._is_late() and self._found:
                    advance(f"no time for {contest.name}")
                    continue
                advance(f"starting the services of {contest.name}, {ballast}")
                self._hold(contest, ballast, advance)

    def _settings(self, ballast: str, contest: Contest) -> Iterator[Setting]:
        for batch_size in contest.batch_sizes:
            for temperature in self._plan.temperatures:
                for domain in self._choice.domains:
                    yield Setting(
                        contest=contest.name,
                        ballast=ballast,
                        batch_size=batch_size,
                        domain=domain,
                        temperature=temperature,
                        is_looping=temperature == 0
                        and self._choice.is_looping(domain, batch_size, self._plan),
                    )

    def _groups(self, setting: Setting, contest: Contest) -> list[Prompts]:
        size = setting.batch_size
        count = self._plan.groups_of(size, contest.num_prompts)
        return self._choice.groups(setting.domain, size, count, is_sound=setting.is_sound)

    def _others(self, setting: Setting, contest: Contest) -> list[Prompts]:
        """To warm up on."""
        size = setting.batch_size
        count = self._plan.groups_of(size, contest.num_prompts)
        return self._choice.others(setting.domain, size, count, is_sound=setting.is_sound)

    def _hold(
        self,
        contest: Contest,
        ballast: str,
        advance: Callable[[str], None],
    ) -> None:
        num_params = self._options.ballasts[ballast]
        flags = [*self._options.flags, *(["--ballast", str(num_params)] if num_params else [])]
        num_tokens = max(contest.batch_sizes) * (self._choice.longest + self._plan.num_tokens)
        flags += kv_memory_flags(self._options.target, num_params, num_tokens)
        with (
            running(contest.services, flags, self._runner) as services,
            client_beside(self._cores, is_pinned=self._options.is_pinned),
        ):
            self._kv_dtype = next(iter(services.values())).kv_dtype()
            asking = Interleaved(services, self._plan, is_late=self._is_late, advance=advance)
            for setting in self._settings(ballast, contest):
                arms = contest.arms(self._plan.methods, setting.temperature)
                found = self._found.setdefault(setting, [])
                groups, others = self._groups(setting, contest), self._others(setting, contest)
                for group in asking.run(setting, arms, groups, others):
                    found.append(group)
                self._keep(self._results(is_complete=False))

    def _is_late(self) -> bool:
        budget_s = self._plan.budget_s
        return budget_s is not None and time.monotonic() - self._began_s > budget_s

    # --- results ------------------------------------------------------------------------------

    def _results(self, *, is_complete: bool) -> Results:
        options, spec = self._options, read_spec(self._options.target)
        for setting, groups in self._found.items():
            if self._num_summed.get(setting) != len(groups):
                self._rows[setting] = rows_of(setting, groups, self._plan.num_tokens)
                self._num_summed[setting] = len(groups)
        return Results(
            summary=summarise(self._found, self._plan.ballasts),
            rows=[row for rows in self._rows.values() for row in rows],
            loops=loops_in(self._found),
            greedy=self._choice.checks,
            prompts=self._prompts,
            plan=self._plan,
            served=Served(
                target=options.target.name,
                num_params={
                    name: with_ballast(spec, count).num_params if count else spec.num_params
                    for name, count in options.ballasts.items()
                },
                drafters={label: _place(choice) for label, choice in options.drafters.items()},
                num_cores=len(self._cores),
                is_pinned=options.is_pinned,
                device=options.device,
                dtype=options.dtype,
                half_weights=options.keeps_16_bits,
                kv_dtype=self._kv_dtype,
            ),
            machine=self._machine,
            command=options.command,
            is_complete=is_complete,
            elapsed_s=time.monotonic() - self._began_s,
        )


def _place(choice: DrafterChoice) -> str:
    return choice.drafter + (f"+{choice.local_head}" if choice.local_head else "")
