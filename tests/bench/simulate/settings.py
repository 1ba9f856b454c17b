"""Settings that tests of the simulator begin with: a forward of 10 ms, tokens that cost nothing."""

from bench.simulate.setting import Drafters, Requests, Setting, Topology
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import RankLaw, Texts

FORWARD_S = 0.01
ALWAYS = RankLaw(missed=0.0)  # the next token is the first guess
NEVER = RankLaw(missed=1.0, power=0.0)


def free_tokens(forward_s: float = FORWARD_S):
    """Forwards that take the same whatever they compute."""
    return measured_steps({1: forward_s, 4096: forward_s})


def setting(
    accept=0.7,
    *,
    gamma=5,
    draft_s=0.004,
    process_s=None,
    mode="sync",
    processes=0,
    num_at_once=1,
    ranks=ALWAYS,
    **more,
) -> Setting:
    """Blocks take one pass of `draft_s` beside the target, `process_s` in a draft process."""
    accept = accept if isinstance(accept, tuple) else (accept,)
    beside = None if draft_s is None else chains({1: (draft_s, 0.0), 64: (draft_s, 0.0)})
    apart = None if process_s is None else chains({1: (process_s, 0.0), 64: (process_s, 0.0)})
    texts = more.pop("texts", None) or Texts(accept, recovery=ranks, bonus=ranks)
    return Setting(
        **{
            "steps": free_tokens(),
            "texts": texts,
            "drafters": Drafters(gamma, beside, apart),
            "topology": Topology(1, processes),
            "requests": Requests(num_at_once, answer_len=400),
            "mode": mode,
            "policy": "fixed",
            "weighs_costs": False,
            **more,
        }
    )
