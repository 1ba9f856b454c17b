"""The pinned child: plain decoding and synchronous speculation over one model, one at a time.

All arms share the process, the model and its weights, so that neither memory nor a second copy in
the caches tells them apart. Drafters are loaded when they are first asked for.
"""

from pathlib import Path

import torch

from bench.drafter_choice import DrafterChoice, load_choice
from bench.in_process import Engine, EngineSize, Job, Speculating
from bench.pinned_child import answer_jobs
from bench.processes import usage
from bench.records import Setup
from bench.sync_speed.records import Arm, SpeculateJob, SpeculateTrace
from specserve.backends.choose import choose_backend
from specserve.drafters.protocol import Drafter
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel


class Arms:
    """Answers a `SpeculateJob` with the engine of its arm."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self._folder = Path(setup.folder)
        self._model = load_model(
            self._folder,
            dtype=getattr(torch, setup.dtype),
            backend=choose_backend(torch.device("cpu")),
            parallel=TensorParallel(),
            ballast=setup.ballast,
            deterministic=setup.deterministic,
        )
        self._drafters: dict[DrafterChoice, Drafter] = {}
        self._engines: dict[tuple[Arm, EngineSize], Engine] = {}

    def __call__(self, job: SpeculateJob) -> SpeculateTrace:
        engine = self._engine(job.arm, EngineSize(job.max_rows, job.max_len))
        before = usage()
        run = engine.run(
            Job(
                job.prompts,
                seeds=job.seeds,
                num_tokens=job.num_tokens,
                temperature=job.temperature,
                ignore_eos=job.ignore_eos,
            )
        )
        return SpeculateTrace(run=run, usage=usage().since(before))

    def _engine(self, arm: Arm, size: EngineSize) -> Engine:
        engine = self._engines.get((arm, size))
        if engine is None:
            speculating = None
            if arm.drafter is not None:
                drafter = self._drafter(arm.drafter, size)
                speculating = Speculating(
                    drafter,
                    arm.method,
                    arm.drafter.gamma,
                    arm.drafter.num_kept,
                    min_survival=None,  # as a service verifies
                )
            engine = self._engines[arm, size] = Engine(self._model, size, speculating)
        return engine

    def _drafter(self, choice: DrafterChoice, size: EngineSize) -> Drafter:
        if choice not in self._drafters:
            self._drafters[choice] = load_choice(
                choice,
                self._folder,
                self._model,
                num_context_tokens=size.num_context_tokens,
                max_positions=size.max_positions(choice.gamma, self._model.config),
            )
        return self._drafters[choice]


if __name__ == "__main__":
    answer_jobs(SpeculateJob, Arms)
