"""The bench of answers in a form: its judges can say no, and a whole run in small."""

import msgspec
import pytest

from bench.structured.__main__ import main
from bench.structured.asking import SAMPLINGS, Answered, Asked
from bench.structured.cost import Pair, cell
from bench.structured.forms import CHOICES, FORMS
from bench.structured.report import Results, verdict
from bench.structured.validity import examine
from bench.writing import REPORT_FILE, RESULTS_FILE
from specserve.settings.target_source import EMBEDDED_TARGET
from specserve.types import FinishReason
from tests.bench.services.traces import trace

CALL = '{"name": "find_shape", "%s": {"type": "box", "width": 5, "height": 6}}'
HERMES = f"<tool_call>\n{CALL % 'arguments'}\n</tool_call>"
PERSON = '{"name": "a", "age": 5, "is_member": true}'
# By form, a text that is of it and some that are not.
TEXTS = {
    "object": (PERSON, [PERSON.replace("5", "500"), PERSON[:-1], PERSON.replace("age", "ages")]),
    "nested object": (
        '{"id": "01234567-89ab-cdef-0123-456789abcdef", "items": '
        '[{"code": "AB-1234", "size": "small", "count": 1}], "note": null}',
        ['{"id": "01234567-89ab-cdef-0123-456789abcdef", "items": [], "note": null}'],
    ),
    "one of two shapes": (
        '{"type": "circle", "radius": 5}',
        ['{"type": "box", "radius": 5}', '{"radius": 5}'],
    ),
    "recursive": (
        '{"value": 1, "left": {"value": 2, "left": null, "right": null}, "right": null}',
        ['{"value": 1, "left": {"value": 2}, "right": null}'],
    ),
    "list of tuples": ('[[1, "a", true]]', ['[[1, "a"]]', '[["a", 1, true]]']),
    "enumeration": ("7", ['"tiny"', "8"]),
    "any object": ('{"a": [1]}', ["[1]", '{"a": 1']),
    "date": ("1999-12-31", ["1999-13-31", "1999-12-31 "]),
    "address": ("a.b@cd.org", ["a@b@cd.org", "a@cd.com"]),
    "few words": ("So it is.", ["So.", "so it is."]),
    "expression (Lark)": ("1 + (20 + 3)", ["1 + (20 + 3", "1 - 2", "a + 1"]),
    "table (GBNF)": ("ab,1\nc,23\n", ["ab,1\nc,23", "ab,1\n"]),
    "choice": (CHOICES[-1], ["", "yes."]),
    "structural tag": ("Answer: <value>true</value> so it is.", ["Answer: true so.", "Answer: "]),
    "calls, hermes": (
        f"{HERMES}\n{HERMES}",
        [HERMES.replace("_shape", ""), HERMES[:-1], f"{HERMES} So.", HERMES.replace("box", "x")],
    ),
    "calls, llama3_json": (CALL % "parameters", [CALL % "arguments", HERMES, CALL[:-1]]),
}


def test_each_form_meets_each_sampling():
    pairs = {(a.form.name, SAMPLINGS.index(a.sampling)) for a in map(Asked, range(1000))}
    assert len(pairs) == len(FORMS) * len(SAMPLINGS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_judge_knows_what_is_of_a_form_and_what_is_not(form):
    good, bad = TEXTS[form.name]
    assert form.problem(good) is None
    assert all(form.problem(text) for text in bad)


def answered(number: int, text: str, **changes: object) -> Answered:
    fields = {"token_ids": [1], "finish_reason": FinishReason.STOP}
    fields |= {"num_drafts": 0, "num_accepted": 0} | changes
    return Answered(number=number, text=text, **fields)  # type: ignore[arg-type]


def test_what_is_wrong_in_one_mode_is_told():
    requests = [Asked(0), Asked(7)]
    found = [answered(0, PERSON), answered(7, "1999-12-31")]
    drafted = [answered(0, PERSON, num_drafts=2, num_accepted=3), answered(7, "1999")]
    odd = [answered(0, PERSON, token_ids=[2], finish_reason=FinishReason.LENGTH), found[1]]

    def examined(**more: list[Answered]):
        answers = {"off": found, **more}
        return examine(EMBEDDED_TARGET, requests, answers, at_once=1, max_tokens=9)

    assert examined(sync=found).is_sound
    wrong = examined(sync=drafted)
    assert not wrong.is_sound
    assert wrong.problems == ["sync, request 7 (date): not of the form"]
    assert (wrong.by_mode["sync"].num_equal, wrong.by_mode["sync"].accept_len) == (1, 2.5)
    cut = examined(sync=odd)
    (problem,) = cut.problems
    assert problem == "sync, request 0 (object): cut, and token 0 is one that the grammar forbids"
    assert cut.by_mode["sync"].num_cut == 1


def test_a_grammar_costs_what_its_tokens_take_more_than_others():
    pairs = [
        Pair(free=trace([1, 1, 2], round_s=0.1), kept=trace([2, 1, 1], round_s=0.1 + more_s))
        for more_s in (0.01, 0.02, 0.03)
    ]
    plain = cell("off", "any objects", 1, pairs)
    assert plain.tpot_ratio.value == pytest.approx(1.2)
    assert plain.tpot.value == pytest.approx(0.075)
    assert plain.round_ratio.value == pytest.approx(1.2)
    assert plain.tpot_ratio.low < 1.2 < plain.tpot_ratio.high
    assert plain.target_ms == pytest.approx(10)  # of 50
    assert plain.accept_len is None
    assert cell("sync", "any objects", 1, pairs).accept_len.value == pytest.approx(4 / 3)


@pytest.mark.slow
def test_a_whole_run_is_valid_and_equal(tmp_path):
    words = ["--quick", "--target", "tiny", "--only", "validity", "drafts", "--drafters", "lm"]
    words += ["--requests", "16", "--num-prompts", "2"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = msgspec.json.decode((tmp_path / RESULTS_FILE).read_bytes(), type=Results)
    validity, drafts = results.validity, results.drafts
    assert results.is_sound
    assert validity.by_mode.keys() == {"off", "sync", "async"}
    assert all(each.num_whole >= 10 for each in validity.by_mode.values())
    assert all(validity.by_mode[mode].accept_len > 1 for mode in ("sync", "async"))
    assert all(cell.num_masks > 1 and cell.mask_ms > 0 for cell in drafts)
    assert sum(cell.masked.value for cell in drafts) > sum(cell.unmasked.value for cell in drafts)
    assert verdict(results) in (tmp_path / REPORT_FILE).read_text()
