"""Pairs of a target and its drafts that a test sets up in a line, and asks."""

from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import MAX_LEN
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

QUICK = Drafting(pace=(12,))  # everything is prepared in time
PROMPT = [5, 9, 3, 7, 5, 9, 3]


def pair_of(models, name="dspark vanilla", drafting=QUICK, **options) -> InProcessPair:
    options = {"miss": Miss.SKIP, "max_model_len": MAX_LEN} | options
    return InProcessPair(models.model(), lambda: models.drafter(name), drafting, **options)


def reports_of(pair: InProcessPair) -> list:
    """All rows that will have been reported, one by one."""
    rows = []
    for peer in pair.links._peers:
        send = peer.end.send

        def record(report, send=send):
            rows.extend(report.rows)
            return send(report)

        peer.end.send = record
    return rows


def answer(pair: InProcessPair, **fields) -> list[int]:
    fields = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True} | fields
    name = f"r{len(pair.ends)}"
    pair.submit(request(name, fields.pop("prompt", PROMPT), **fields))
    pair.run_until_idle()
    return pair.tokens[name, 0]
