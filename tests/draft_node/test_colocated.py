import pytest
import torch

from draft_node.colocated import describe, load_feature_spec
from draft_node.drafters.load import DEFAULT_MOST_GAMMA, USUAL_HIDDEN_TOKENS
from specserve.config import SpeculationConfig
from specserve.errors import Unsupported
from tests.draft_node.drafters.checkpoints import DSPARK, EAGLE3, make_drafter, write_drafter
from tests.specserve.model.checkpoints import load


@pytest.mark.parametrize("config", [DSPARK, EAGLE3])
def test_the_projection_alone_is_that_of_the_drafter(target, tmp_path, config):
    drafter = make_drafter(tmp_path / "draft", config, target)
    model = load(target.folder)
    spec = load_feature_spec(str(tmp_path / "draft"), target=target.folder, model=model)
    assert spec.layers == drafter.features.layers
    residuals = torch.randn(5, 32 * len(spec.layers))
    assert torch.equal(spec.project(residuals), drafter.features.project(residuals))


def test_drafters_that_read_token_ids_alone_want_no_features(target):
    model = load(target.folder)
    assert load_feature_spec("ngram", target=target.folder, model=model) is None
    assert load_feature_spec(str(target.folder), target=target.folder, model=model) is None


def test_what_does_not_fit_the_target_is_refused(target, tmp_path):
    write_drafter(tmp_path / "draft", DSPARK, vocab_size=65)
    with pytest.raises(Unsupported, match="vocab_size"):
        load_feature_spec(str(tmp_path / "draft"), target=target.folder, model=load(target.folder))


@pytest.mark.parametrize(("gamma", "num_tokens"), [(None, 1 + DEFAULT_MOST_GAMMA), (4, 4)])
def test_a_language_model_in_a_draft_process_may_have_chains_longer_than_usual(
    target, gamma, num_tokens
):
    speculation = SpeculationConfig(drafter=str(target.folder), gamma=gamma)
    assert describe(speculation) == ("language model", num_tokens)
    assert 1 + DEFAULT_MOST_GAMMA > USUAL_HIDDEN_TOKENS
