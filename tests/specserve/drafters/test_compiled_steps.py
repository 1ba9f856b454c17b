"""Steps in one call draw what torch's own steps draw, and say as much about it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specserve.backends.cpu import step_kernels
from specserve.drafters import steps as module
from specserve.drafters.branch_attention import Entering
from specserve.drafters.chain_ending import ChainEnding
from specserve.drafters.chain_steps import Chains, TorchSteps
from specserve.drafters.compiled_passes import CompiledPasses
from specserve.drafters.compiled_steps import CompiledSteps
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.law_confidence import FittedLawConfidence, LawModel, LawRecorder
from specserve.drafters.pass_clock import FURTHER, LEAST_PASSES, LOOKED, NUM_PASSES
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Worth
from specserve.drafters.steps import chain_steps
from specserve.noise import OnceKeys
from specserve.sampling.drawing import BlockLayout, Coupled, Greedy, Sampled
from specserve.sampling.noise_table import NoiseTable
from specserve.sampling.race import Race
from specserve.sampling.shaping import shaped
from tests.specserve.drafters.requests_fields import SHAPED, states_under
from tests.specserve.drafters.test_compiled_passes import LENGTHS, passes_of
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint

pytest.importorskip("numba")
pytestmark = pytest.mark.usefixtures("one_thread")
NUM_STEPS = 5
CHAINS = [([0], [20]), ([1, 0, 1, 3, 1, 2], [33, 20, 12, 16, 33, 1]), ([1] * 15, [33] * 15)]
KINDS = ["greedy", "coupled", "sampled", "greedy shaped", "coupled shaped", "sampled shaped"]
RULES = [pytest.param(kind, marks=pytest.mark.slow if SHAPED in kind else ()) for kind in KINDS]
CONFIDENCE = LawModel(log_max_prob=1.5, entropy=-0.2, biases=[0.5, 0.2])


@pytest.fixture(scope="module", params=[(QWEN3, 64), (LLAMA, 71)], ids=["qwen3", "odd vocabulary"])
def model(request, tmp_path_factory):
    config, vocab_size = request.param
    folder = tmp_path_factory.mktemp("model")
    return load(write_checkpoint(folder, {**config, "vocab_size": vocab_size}))


def rule_of(kind, count):
    temperatures = torch.tensor([1.0, 0.4, 0.0, 2.0] * 4)[:count]
    if kind.endswith(SHAPED):
        rule = rule_of(kind.removesuffix(SHAPED), count)
        return shaped(rule, states_under(temperatures * (kind != "greedy shaped")))
    numbers = torch.arange(count)
    if kind == "greedy":
        return Greedy()
    if kind == "coupled":
        return Coupled(temperatures, numbers, numbers // 2, NoiseTable())
    zeros = [0] * count
    keys = OnceKeys.build(zeros, zeros, zeros, numbers.tolist(), zeros, torch.device("cpu"))
    return Sampled(temperatures, keys, num_kept=20)


def chains_of(
    model,
    rule,
    rows,
    lengths,
    *,
    confidence=None,
    keep_logits=True,
    entering=None,
    count=NUM_STEPS,
    **batch,
):
    passes = passes_of(CompiledPasses, model)
    if entering is not None:
        passes.context.rows.append(entering.rows, entering.starts, entering.counts)
    passes.plan(rows, lengths, count, entering)
    batch = DraftBatch(rows, torch.arange(len(rows)) + 3, keep_logits=keep_logits, **batch)
    vocab_size = model.config.vocab_size
    drawing = rule.begin(BlockLayout(torch.tensor(lengths) + 1, count, vocab_size, None))
    return Chains(model, passes, confidence, drawing, batch, count)


def begun(chains, ending=None):
    ending = ending or ChainEnding()
    ending.begin(chains.batch, has_confidences=chains.law_confidence is not None)
    return ending


@torch.inference_mode()
def drawn_by(kind, *args, **options):
    chains = chains_of(*args, **options)
    steps = TorchSteps(chains) if kind is TorchSteps else CompiledSteps.of(chains)
    assert steps is not None
    return steps.run(begun(chains))


def fitted():
    return FittedLawConfidence.of(CONFIDENCE, [1.1, 0.9], torch.device("cpu"))


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("count", [1, 3, NUM_STEPS])
def test_steps_are_those_of_torch(model, kind, rows, lengths, count):
    rule, entering = rule_of(kind, len(rows)), Entering([3, 0], [16, 20], [2, 1], [7, 8, 9])
    options = {"count": count, "confidence": fitted(), "entering": entering}
    found = drawn_by(CompiledSteps, model, rule, rows, lengths, **options)
    expected = drawn_by(TorchSteps, model, rule, rows, lengths, **options)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert found.token_ids.shape == (len(rows), count)
    torch.testing.assert_close(found.confidences, expected.confidences)
    torch.testing.assert_close(found.logits, expected.logits)
    if kind.startswith("sampled"):
        assert torch.equal(found.law.ids, expected.law.ids)
        torch.testing.assert_close(found.law.probs, expected.law.probs)
    else:
        assert found.law is expected.law is None


@pytest.mark.parametrize("kind", RULES)
def test_nothing_is_kept_or_said_that_nobody_wants(model, kind):
    rows, lengths = CHAINS[1]
    plain = drawn_by(CompiledSteps, model, rule_of(kind, 6), rows, lengths, keep_logits=False)
    whole = drawn_by(CompiledSteps, model, rule_of(kind, 6), rows, lengths, confidence=fitted())
    assert torch.equal(plain.token_ids, whole.token_ids)
    assert plain.logits is None
    assert plain.confidences is None


@pytest.mark.parametrize("kind", RULES)
def test_a_chain_is_drafted_alike_alone_and_in_a_wave(model, kind):
    rows, lengths = [1] * 15, [33] * 15
    together = drawn_by(CompiledSteps, model, rule_of(kind, 15), rows, lengths)
    few = drawn_by(CompiledSteps, model, rule_of(kind, 4), rows[:4], lengths[:4])
    assert torch.equal(together.logits[:4], few.logits)
    assert torch.equal(together.token_ids[:4], few.token_ids)


@pytest.mark.parametrize("kind", RULES)
def test_what_is_no_number_stays_in_its_chain(model, kind):
    """Sampled chains then have slots without a law, which torch draws, and go on."""
    rows, lengths = CHAINS[1]
    whole = drawn_by(CompiledSteps, model, rule_of(kind, 6), rows, lengths)
    chains = chains_of(model, rule_of(kind, 6), rows, lengths)
    with torch.inference_mode():
        kept = model.embedding[5].clone()
        model.embedding[5] = torch.nan  # the anchor of the third chain
        drawn = CompiledSteps.of(chains).run(begun(chains))
        model.embedding[5] = kept
    assert drawn.logits[2, 0].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(drawn.token_ids[others], whole.token_ids[others])
    assert drawn.token_ids.shape == whole.token_ids.shape
    assert ((drawn.token_ids >= 0) & (drawn.token_ids < model.config.vocab_size)).all()


@pytest.mark.parametrize("keep_logits", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_a_slot_without_a_law_is_drawn_by_torch_from_its_own_logits(
    model, kind, keep_logits, monkeypatch
):
    rows, lengths = CHAINS[1]
    options = {"keep_logits": keep_logits}
    expected = drawn_by(TorchSteps, model, rule_of(kind, 6), rows, lengths, **options)
    draft_chains, refused = step_kernels.draft_chains, []

    def refusing(slot, job, sizes, clock):
        """One step at a time, every second of which has no law: its logits are left as they are."""
        num_tokens, _ = sizes
        part = job if slot % 2 else job._replace(draws=Race.greedy())
        draft_chains(slot, part, (num_tokens, slot + 1), clock)
        if slot % 2:
            return refusing(slot + 1, job, sizes, clock)
        job.drawn.token_ids[slot] = -1
        refused.append(slot)
        return step_kernels.NO_LAW, slot + 1, True

    monkeypatch.setattr(step_kernels, "draft_chains", refusing)
    found = drawn_by(CompiledSteps, model, rule_of(kind, 6), rows, lengths, **options)
    assert refused == [0, 2, 4]
    assert torch.equal(found.token_ids, expected.token_ids)
    if kind.startswith("sampled"):
        assert torch.equal(found.law.ids, expected.law.ids)


def test_what_has_no_compiled_step_is_left_to_torch(model, monkeypatch):
    rows, lengths = CHAINS[1]

    def steps_for(rule, **options):
        return type(chain_steps(chains_of(model, rule, rows, lengths, **options)))

    greedy = Greedy()
    assert steps_for(greedy) is CompiledSteps
    assert steps_for(greedy, confidence=LawRecorder()) is TorchSteps
    torch.set_num_threads(2)
    assert steps_for(greedy) is TorchSteps
    torch.set_num_threads(1)
    monkeypatch.setattr(module, "are_usable", lambda: False)
    assert steps_for(greedy) is TorchSteps


def test_a_forward_that_breaks_off_is_an_error(model):
    rows, lengths = CHAINS[1]
    chains = chains_of(model, Greedy(), rows, lengths)
    steps = CompiledSteps.of(chains)
    chains.passes._later.pages[:] = 1 << 40
    with pytest.raises(RuntimeError, match="broke off"):
        steps.run(begun(chains))


def test_wrong_steps_are_not_used(monkeypatch, caplog):
    draft_chains = step_kernels.draft_chains

    def wrong(first_slot, job, sizes, clock):
        made = draft_chains(first_slot, job, sizes, clock)
        job.drawn.token_ids[0, 1] ^= 1
        return made

    wrong.signatures = draft_chains.signatures
    module.are_usable.cache_clear()
    monkeypatch.setattr(step_kernels, "draft_chains", wrong)
    assert not module.are_usable()
    assert "Greedy" in caplog.text
    module.are_usable.cache_clear()


def test_one_compilation_serves_every_call(model):
    """Another would be made in the middle of a round."""
    assert module.are_usable()
    before = len(step_kernels.draft_chains.signatures)
    drafter = LanguageModelDrafter(model, gamma=NUM_STEPS, num_context_tokens=256)
    for row, count in LENGTHS.items():
        drafter.extend(ContextUpdate([row], [0], [count], torch.arange(count), None))
    for confidence in (None, fitted()):
        drafter.law_confidence = confidence
        for kind in KINDS:
            for keep_logits in (False, True):
                for rows in ([0], [1, 1, 2]):
                    batch = DraftBatch(rows, torch.tensor(rows), keep_logits=keep_logits)
                    drafter.draft(batch, rule_of(kind, len(rows)))
    assert len(step_kernels.draft_chains.signatures) == before == 1


@pytest.mark.parametrize("kind", [TorchSteps, CompiledSteps])
def test_chains_end_when_their_time_is_up_and_where_no_more_pays(model, kind):
    rows, lengths = CHAINS[1]

    def length(**batch):
        drawn = drawn_by(kind, model, Greedy(), rows, lengths, confidence=fitted(), **batch)
        assert drawn.confidences.shape == drawn.token_ids.shape
        return drawn.token_ids.shape[1]

    assert length() == NUM_STEPS
    assert length(due_s=0.0) == LEAST_PASSES
    assert length(due_s=time.perf_counter() + 100) == NUM_STEPS
    assert length(worth=Worth(0.0, 2.0)) == 1  # a place costs more than a token
    assert length(worth=Worth(0.0, 2.0), least=3) == 3
    assert length(worth=Worth(0.0, 0.0)) == NUM_STEPS
    assert length(worth=Worth(0.0, 2.0, may_look=False), least=2) == 2


def test_compiled_chains_learn_as_torchs_do(model):
    """The same confidences lead to the same state; passes are timed."""
    rows, lengths = CHAINS[1]
    endings = {}
    for kind in (TorchSteps, CompiledSteps):
        options = {"confidence": fitted(), "worth": Worth(1.0, 0.1), "least": 2}
        options["chances"] = [0.5, 0.1, 0.0, 1.0, 0.3, 0.2]
        chains = chains_of(model, Greedy(), rows, lengths, **options)
        endings[kind] = begun(chains)
        steps = TorchSteps(chains) if kind is TorchSteps else CompiledSteps.of(chains)
        with torch.inference_mode():
            steps.run(endings[kind])
    ours, theirs = endings[CompiledSteps], endings[TorchSteps]
    np.testing.assert_allclose(ours.worth.state, theirs.worth.state, rtol=1e-5)
    np.testing.assert_allclose(ours.worth.survivals, theirs.worth.survivals, rtol=1e-4)
    assert ours.clock.state[NUM_PASSES] == theirs.clock.state[NUM_PASSES]
    assert 0 < ours.clock.further_s < 1
    assert abs(ours.clock.state[LOOKED] - time.perf_counter()) < 60


@pytest.mark.parametrize("kind", [TorchSteps, CompiledSteps])
@pytest.mark.parametrize(("pass_s", "length"), [(1e-9, NUM_STEPS), (10.0, 1)])
def test_a_pass_that_takes_longer_has_to_bring_more(model, kind, pass_s, length):
    rows, lengths = CHAINS[1]
    options = {"confidence": fitted(), "worth": Worth(1.0, 0.0)}
    chains = chains_of(model, Greedy(), rows, lengths, **options)
    ending = begun(chains)
    ending.clock.state[FURTHER] = pass_s
    steps = TorchSteps(chains) if kind is TorchSteps else CompiledSteps.of(chains)
    with torch.inference_mode():
        assert steps.run(ending).token_ids.shape[1] == length


@pytest.mark.parametrize("kind", RULES)
def test_it_is_asked_before_a_token_is_drawn_whether_another_is_to_follow(model, kind):
    """What was drawn would else decide by its time whether it is verified."""
    rows, lengths = CHAINS[1]
    chains = chains_of(model, rule_of(kind, 6), rows, lengths, confidence=fitted())
    order, ending = [], begun(chains)
    draw, goes_on = chains.drawing.draw, ending.goes_on
    drawing = SimpleNamespace(
        draw=lambda slot, logits: order.append("draw") or draw(slot, logits),
        law=chains.drawing.law,
    )
    ending.goes_on = lambda known: order.append("ask") or goes_on(known)
    with torch.inference_mode():
        TorchSteps(replace(chains, drawing=drawing)).run(ending)
    assert order == ["ask", "draw"] * NUM_STEPS


@pytest.mark.parametrize("bad", [-1, 10**9])
@pytest.mark.parametrize("where", ["anchor", "entering"])
def test_tokens_that_are_not_there_are_an_error(model, bad, where):
    rows, lengths = CHAINS[0]
    entering = Entering([3], [16], [2], [7, bad if where == "entering" else 8])
    chains = chains_of(model, Greedy(), rows, lengths, entering=entering)
    if where == "anchor":
        chains = replace(chains, batch=replace(chains.batch, anchor_ids=torch.tensor([bad])))
    with pytest.raises(IndexError, match="not there"):
        CompiledSteps.of(chains).run(begun(chains))


def test_room_is_for_what_the_last_pass_sees(model):
    """Memory that is left over may hide that there was none."""
    passes = CompiledPasses(model, num_tokens=512, longest=40)
    passes.context.rows.append([0], [0], [33])
    passes.enter(Entering([0], [0], [33], [1] * 33))
    for most, num_keys in ((1, 64), (31, 80), (40, 96)):
        passes.plan([0], [33], most, None)
        passes.by_address()
        assert passes._forward._num_keys >= num_keys
