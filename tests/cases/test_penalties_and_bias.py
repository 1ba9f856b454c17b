"""Cases 10 and 11: penalties, min_p and bias hold for drafted tokens and for what follows them."""

from itertools import product

import pytest

from tests.cases.apis import GRPC, Service, ask, ask_all, ask_plainly, refusal
from tests.cases.parts import case, some

LOOP = "import os\nimport"  # greedy decoding repeats it for ever
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 32}
SEEDED = {"temperature": 1, "ignore_eos": True, "max_tokens": 24}

REPETITION = [{"repetition_penalty": value} for value in (0.5, 1.05, 1.3, 2.0)]
PRESENCE = [{"presence_penalty": value} for value in (-2.0, 0.5, 2.0)]
FREQUENCY = [{"frequency_penalty": value} for value in (-2.0, 0.5, 2.0)]
TOGETHER = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 2.0}
# Of these the greedy loop cannot stay what it is.
BREAKING = [{"repetition_penalty": 2.0}, {"frequency_penalty": 2.0}, TOGETHER]


def everywhere(api: str, service: Service, requests: list[dict], prompt: str = LOOP) -> list:
    """Answers, four at a time, which are those of plain decoding one by one."""
    answers = ask_all(
        lambda prompt, **fields: ask(api, service, prompt, **fields),
        [(prompt, fields) for fields in requests],
        at_once=4,
    )
    assert answers == [ask_plainly(service, prompt, **fields) for fields in requests]
    return answers


@pytest.mark.slow
@case(10)
def test_penalties_are_those_of_plain_decoding(api: str, service: Service):
    grid = [*REPETITION, *PRESENCE, *FREQUENCY, TOGETHER]
    requests = [{**GREEDY, **fields} for fields in grid]
    requests += [{**SEEDED, **fields, "seed": 5} for fields in some(grid, 4)]
    answers = everywhere(api, service, requests)
    assert sum(answer.num_accepted for answer in answers) > 20


@pytest.mark.slow
@case(10)
def test_penalties_change_what_they_should(api: str, service: Service):
    requests = [GREEDY, *({**GREEDY, **fields} for fields in BREAKING)]
    unpenalised, *penalised = everywhere(api, service, requests)
    assert len(set(unpenalised.only.token_ids)) < 5
    for answer in penalised:
        ids = answer.only.token_ids
        assert len(set(ids)) > 2 * len(set(unpenalised.only.token_ids))


@case(10)
def test_penalties_out_of_range_are_refused_by_name(api: str, service: Service):
    wrong = [0.0, -1.0, 10.1, *([float("nan"), float("inf")] if api == GRPC else [])]
    for value in wrong:
        problem = refusal(api, service, LOOP, repetition_penalty=value)
        assert problem.startswith("repetition_penalty: ")
    for field, value in product(("presence_penalty", "frequency_penalty"), (-2.1, 2.1)):
        assert refusal(api, service, LOOP, **{field: value}).startswith(f"{field}: {value} ")


@pytest.mark.slow
@case(11)
def test_min_p_is_that_of_plain_decoding(api: str, service: Service):
    requests = [
        {**SEEDED, "min_p": min_p, "seed": seed} for min_p in (0.05, 0.5, 1.0) for seed in (1, 2)
    ]
    answers = everywhere(api, service, requests, prompt="def main(")
    greedy = ask_plainly(service, "def main(", **SEEDED | {"temperature": 0})
    assert [answer.samples for answer in answers[4:]] == [greedy.samples] * 2
    assert len({answer.only.token_ids for answer in answers[:4]}) > 2


@pytest.mark.slow
@case(11)
def test_what_bias_bans_never_comes(api: str, service: Service):
    usual = ask_plainly(service, LOOP, **GREEDY).only.token_ids
    bans = [[usual[0]], list(usual), [0], range(5, 1029)]
    requests = [
        {**shape, "logit_bias": dict.fromkeys(banned, -100.0), "seed": 4}
        for banned in bans
        for shape in (GREEDY, SEEDED, {**SEEDED, "ignore_eos": False})
    ]
    requests.append({**GREEDY, "logit_bias": {300: 5.0, 301: 5.0}})
    requests = some(requests, 6)
    answers = everywhere(api, service, requests)
    for answer, fields in zip(answers, requests, strict=True):
        banned = {token_id for token_id, bias in fields["logit_bias"].items() if bias < 0}
        assert not banned & set(answer.only.token_ids)
    assert sum(answer.num_accepted for answer in answers) > 20
