"""Links that carry tensors change where distributions and features lie, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specserve.sampling.verification.method import VerificationMethod
from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import Models, make_models
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.speculation.asynchronous_pairs import PROMPT, QUICK, pair_of

TENSORS = replace(QUICK, tensors=True)
LONG = [1 + (7 * i) % 60 for i in range(70)]  # told by control first: from the host


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def run_with(models: Models, drafting, method: VerificationMethod, miss: Miss) -> InProcessPair:
    with pair_of(models, drafting=drafting, miss=miss, default_method=method) as pair:
        for index, prompt in enumerate((PROMPT, LONG, PROMPT[:3])):
            fields = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
            pair.submit(request(f"r{index}", prompt, **fields))
        pair.run_until_idle()
        (peer,) = pair.links._peers
        assert peer.end.counters.num_malformed == 0
    return pair


@pytest.mark.parametrize("miss", [Miss.SKIP, Miss.LOCAL_DRAFT])
@pytest.mark.parametrize("method", [VerificationMethod.REJECTION, VerificationMethod.COUPLED])
def test_rounds_texts_and_bytes_are_those_of_shared_memory(models, method, miss):
    shared = run_with(models, QUICK, method, miss)
    tensors = run_with(models, TENSORS, method, miss)
    assert tensors.tokens == shared.tokens
    before, now = shared.asynchronous.status(), tensors.asynchronous.status()
    assert (now.num_hits, now.num_lookups) == (before.num_hits, before.num_lookups)
    assert (now.bytes_sent, now.bytes_received) == (before.bytes_sent, before.bytes_received)
    # What a local draft of plain rejection is followed by, nobody foresees here.
    assert now.num_hits > 3 or (miss is Miss.LOCAL_DRAFT and now.num_lookups > 3)
    (draft,) = tensors.drafts
    assert draft.tensors is not None
    reports, pushes = draft.tensors
    assert 4 * reports.num_entries > now.bytes_sent / 2
    # Distributions travel where somebody divides by them.
    by_ratio = method is VerificationMethod.REJECTION
    assert (pushes.num_entries > 0) is by_ratio
    assert not by_ratio or 4 * pushes.num_entries > now.bytes_received / 2


def test_what_only_a_device_reads_is_a_tensor_from_end_to_end(models):
    kinds = {"reports": set(), "pushes": set()}
    method = VerificationMethod.REJECTION
    with pair_of(models, drafting=TENSORS, miss=Miss.LOCAL_DRAFT, default_method=method) as pair:
        (peer,) = pair.links._peers
        send, receive = peer.end.send, peer.end.receive

        def sending(report):
            for row in report.rows:
                top_k = row.draft_top_k
                slots = () if top_k is None else (top_k.slot_ids, top_k.slot_scores)
                kinds["reports"] |= {type(each) for each in (row.features, *slots) if each.nbytes}
            return send(report)

        def receiving():
            pushes = receive()
            for push in pushes:
                arrays = (push.kept_ids, push.kept_probs)
                kinds["pushes"] |= {type(each) for each in arrays if each.nbytes}
            return pushes

        peer.end.send, peer.end.receive = sending, receiving
        pair.submit(request("r", PROMPT, temperature=1.0, max_tokens=20, ignore_eos=True))
        pair.run_until_idle()
    assert kinds == {"reports": {torch.Tensor}, "pushes": {torch.Tensor}}
    assert np.ndarray not in kinds["reports"] | kinds["pushes"]
