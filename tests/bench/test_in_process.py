"""A node inside the bench: what its rounds are told as."""

import pytest
import torch

from bench.drafter_choice import DrafterChoice, load_choice
from bench.in_process import Engine, EngineSize, Job, Speculating
from specserve.backends.choose import choose_backend
from specserve.drafters import colocated
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.sampling.verification.method import VerificationMethod
from tests.backends.chosen import BACKEND
from tests.specserve.drafters.checkpoints import DSPARK, write_drafter, write_target

SIZE = EngineSize(max_rows=3, max_len=60)
PROMPTS = [[5, 9, 13, 9, 5, 9], [7] * 10, list(range(2, 22))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target")).folder


@pytest.fixture(scope="module")
def model(folder):
    cpu = torch.device("cpu")
    return load_model(
        folder,
        dtype=torch.float32,
        backend=choose_backend(cpu),
        parallel=TensorParallel(),
        deterministic=True,
    )


@pytest.fixture(scope="module", params=["ngram", "dspark"])
def drafter(request, tmp_path_factory, folder, model):
    place = "ngram"
    if request.param == "dspark":
        place = str(write_drafter(tmp_path_factory.mktemp("dspark"), DSPARK))
    choice = DrafterChoice(label=request.param, drafter=place, gamma=4)
    return load_choice(
        choice,
        folder,
        model,
        num_context_tokens=SIZE.num_context_tokens,
        max_positions=SIZE.max_positions(4, model.config),
    )


def job(temperature: float = 1.0, **changes) -> Job:
    return Job(PROMPTS, seeds=[1, 2, 3], num_tokens=20, temperature=temperature, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("method", list(VerificationMethod))
def test_rounds_account_for_every_token(model, drafter, method):
    run = Engine(model, SIZE, Speculating(drafter, method, gamma=4, num_kept=16)).run(job())
    for answer in run.answers:
        assert len(answer.token_ids) == 20
        assert 1 + sum(found.num_emitted for found in answer.rounds) == 20
        room = 19
        for found in answer.rounds:
            assert found.room == room
            assert found.num_accepted <= found.verify_len <= min(4, room - 1)
            assert found.num_emitted == found.num_accepted + 1
            room -= found.num_emitted
    assert sum(turn.num_emitted for turn in run.turns) == 60
    assert any(found.verify_len for answer in run.answers for found in answer.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_text_is_that_of_plain_decoding(model, drafter, temperature):
    coupled = Speculating(drafter, VerificationMethod.COUPLED, gamma=4, num_kept=16)
    plain = Engine(model, SIZE).run(job(temperature))
    speculated = Engine(model, SIZE, coupled).run(job(temperature))
    assert [answer.token_ids for answer in speculated.answers] == [
        answer.token_ids for answer in plain.answers
    ]
    assert all(found.verify_len == 0 for answer in plain.answers for found in answer.rounds)


@pytest.mark.parametrize("method", list(VerificationMethod))
def test_a_drafter_that_is_the_target_itself_is_never_rejected(model, folder, method):
    located = DrafterChoice(label="self", drafter=str(folder), gamma=4).located(folder)
    drafter = colocated.load(
        located,
        target=folder,
        model=model,
        backend=BACKEND,
        num_context_tokens=SIZE.num_context_tokens,
        max_positions=SIZE.max_positions(4, model.config),
        bits=32,  # fewer, and it would be another distribution
    )
    whole_sampling = Speculating(drafter, method, gamma=4, num_kept=model.config.vocab_size)
    run = Engine(model, SIZE, whole_sampling).run(job())
    rounds = [found for answer in run.answers for found in answer.rounds]
    assert rounds
    assert all(found.num_accepted == found.verify_len > 0 for found in rounds if found.room > 1)


def test_a_limit_of_the_request_holds_in_every_round(model, drafter):
    speculating = Speculating(drafter, VerificationMethod.FORESEEABLE, gamma=4, num_kept=16)
    run = Engine(model, SIZE, speculating).run(job(max_verify_len=2))
    lens = {found.verify_len for answer in run.answers for found in answer.rounds}
    assert max(lens) == 2


def test_all_prompts_are_read_in_the_first_turn_and_then_all_rows_decode(model):
    run = Engine(model, SIZE).run(job())
    assert [turn.is_decode for turn in run.turns] == [False] + [True] * 19
    assert {turn.num_rows for turn in run.turns} == {3}


def test_a_job_that_does_not_fit_is_refused(model):
    with pytest.raises(ValueError, match="do not fit"):
        Engine(model, EngineSize(max_rows=3, max_len=39)).run(job())
