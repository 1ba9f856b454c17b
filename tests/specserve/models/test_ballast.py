import pytest
import torch

from specserve.errors import InvalidField
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.settings.sizes import parse_count
from tests.golden import Session
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint, write_config

PROMPT = torch.arange(11) * 5 % 64
EMBEDDED_SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "head_dim": 32,
}


@pytest.mark.parametrize("size", ["8M", "30M", "60M", "98M", "200M"])
def test_ballast_brings_the_model_to_the_asked_size(tmp_path, size):
    spec = read_spec(write_config(tmp_path, QWEN3, **EMBEDDED_SHAPE))
    padded = with_ballast(spec, parse_count(size))

    assert padded.num_params == pytest.approx(parse_count(size), rel=0.005)
    assert padded.num_params - padded.ballast_params == spec.num_params
    assert all(width % 64 == 0 for width in padded.ballast_widths)
    assert max(padded.ballast_widths) / 256 > len(padded.ballast_widths)  # wide, not deep


def test_a_size_below_the_model_is_refused(tmp_path):
    spec = read_spec(write_config(tmp_path, QWEN3, **EMBEDDED_SHAPE))
    assert with_ballast(spec, 0) == spec
    with pytest.raises(InvalidField, match="4983872"):
        with_ballast(spec, 1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_ballast_changes_no_bit_of_the_logits(tmp_path, config):
    folder = write_checkpoint(tmp_path, config)
    plain, heavy = load(folder), load(folder, ballast=400_000)
    assert heavy.config.num_layers > plain.config.num_layers
    assert heavy.num_params > 6 * plain.num_params

    results = []
    for target in (plain, heavy):
        session = Session(target, len(PROMPT))
        chunks = [session.feed(chunk, taps=(1, -1)) for chunk in PROMPT.split([7, 1, 3])]
        hidden = torch.cat([hidden for hidden, _ in chunks])
        taps = [torch.cat(parts) for parts in zip(*(taps for _, taps in chunks), strict=True)]
        results.append([session.logits(hidden), hidden, *taps])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    # Ballast costs what real layers do: its keys are written, and its products are not of zeros.
    keys, values = session.keys_and_values(heavy.config.num_layers - 1)
    for stored in (keys, values):
        assert stored.isfinite().all()
        assert stored.abs().mean() > 0.1
