"""What is compiled at its first use is used before a draft process says that it is ready.

In the middle of a round it took more than the second after which a silent draft process is killed,
and the next one began anew.
"""

import signal
import sys
from dataclasses import replace

import pytest
import torch

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import PACKAGES
from specserve.drafters.load import DEFAULT_GAMMA, DrafterOptions
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.warm_up import warm_up
from specserve.transport.link.messages import Report
from specserve.transport.link.ring import RingTargetEnd
from tests.draft_node.prespeculation.rounds import CPU, Rounds, dspark, in_flight_of, language_model
from tests.draft_node.test_node import LIMITS, peer, row_of, start_process

pytest.importorskip("numba")

__all__ = ["peer"]

REPEATED = [3, 14, 15, 9, 26, 5] * 5  # prompt lookup has something to say about


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """What was tried whether it works, which compiles it; nothing was before."""
    for name, module in list(sys.modules.items()):
        for value in vars(module).values() if name.partition(".")[0] in PACKAGES else ():
            if getattr(value, "__name__", "") in ("are_usable", "is_usable"):
                value.cache_clear()
    found, works = [], compiled.works
    monkeypatch.setattr(
        compiled, "works", lambda what, *args: found.append(what) or works(what, *args)
    )
    return found


def begun(name, target, tmp_path):
    """A drafter as it is when its process is ready."""
    if name == "ngram":
        drafter = NgramDrafter(gamma=4)
    else:
        drafter = dspark(tmp_path / "draft", target) if name == "dspark" else language_model(target)
    options = DrafterOptions(torch.float32, CPU, num_context_tokens=64, max_positions=128)
    warm_up(drafter, options, size=4, num_kept=16)
    return drafter


@pytest.mark.parametrize("name", ["dspark", "language model", "ngram"])
def test_no_round_is_the_first_to_use_anything_compiled(name, target, tmp_path, asked):
    rounds = Rounds(begun(name, target, tmp_path))
    assert "outcomes are ordered" in asked
    asked.clear()
    for stream, rule in enumerate(("coupled", "foreseeable", "rejection"), 1):
        for more, temperature in ((0, 0.0), (10, 0.8)):
            fields = {"stream": stream + more, "rule": rule, "temperature": temperature}
            if name == "ngram":
                rounds.take(REPEATED, **fields)
            else:
                in_flight_of(rounds, **fields)
            assert rounds.finish()
            rounds.pushes.clear()
    assert asked == []


def kept(folder):
    return sorted(path.name for path in folder.rglob("*.nbc"))


@pytest.mark.slow
def test_a_process_without_weights_has_nothing_left_to_compile_when_it_is_ready(
    peer, target, tmp_path, monkeypatch
):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    limits = replace(LIMITS, gamma=DEFAULT_GAMMA, feature_size=0)
    peer.link = RingTargetEnd(peer.region, limits)
    process, report = start_process(peer, target, tmp_path, "ngram")
    try:
        assert report.ready, report.error
        before = kept(tmp_path / "kept")
        peer.attach(1)
        peer.link.send(Report([row_of(REPEATED, NgramDrafter(gamma=DEFAULT_GAMMA))]))
        assert peer.pushes(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
    assert before
    assert kept(tmp_path / "kept") == before
