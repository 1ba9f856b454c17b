"""`specserve audit` on real services of a tiny model: sound ones pass, broken ones fail."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.cli import main
from tests.run_first import run_first
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

NOISE = 0.1  # in weights of a drafter, by their own spread
FEW = ("--requests", "24", "--samples", "800", "--quick", "--json")
FEWER = ("--requests", "24", "--samples", "320")  # where what is wrong does not hide
FEWEST = ("--requests", "24", "--samples", "64")  # where they have no say
# Every draft is verified, whatever it costs on this machine, and prompts leave room for all of
# them.
_SETTINGS = {
    "topology.oversubscribe": "true",
    "speculation.min_survival": "0",
    "engine.max_batch_tokens": "2048",
}
SETTINGS = [word for key, value in _SETTINGS.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, embedded_target) -> Path:
    """A small random model with the embedded tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, QWEN3, vocab_size=4096, eos_token_id=0, max_position_embeddings=1024)
    for path in embedded_target.glob("*token*.json"):
        shutil.copy(path, folder)
    # Which audits know nothing of.
    wishes = {"temperature": 0.6, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.3}
    (folder / "generation_config.json").write_text(json.dumps(wishes))
    return folder


@pytest.fixture(scope="module")
def drafter(tmp_path_factory, tiny) -> Path:
    """Another model, near enough that a third or more of what it drafts is refused, and not all."""
    folder = tmp_path_factory.mktemp("drafter")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    noise = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            spread = torch.randn(tensor.shape, generator=noise) * tensor.std()
            tensors[name] = tensor + NOISE * spread
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def audit(tiny, capsys):
    """The exit code and the report of one audit, of services of its own."""

    def audit(*words: str) -> tuple[int, dict]:
        own = () if "--connect" in words else ("--target", str(tiny), *SETTINGS)
        code = main(["audit", *FEW, *own, *words])
        return code, json.loads(capsys.readouterr().out)

    return audit


@pytest.fixture
def audit_broken(audit, start_service, monkeypatch, tmp_path):
    """The report of one audit that fails, of one service whose target runs `code` first.

    It is asked for plain answers as well, which takes one start less than services of its own.
    """

    def audit_broken(code: str, *flags: str, sizes: tuple[str, ...] = ()) -> dict:
        run_first(monkeypatch, tmp_path, ["target_node"], code)
        usual = ("--speculation", "sync", "--set", "engine.deterministic=true", *SETTINGS)
        exit_code, report = audit("--connect", start_service(*usual, *flags), *sizes)
        assert (exit_code, report["verdict"]) == (1, "failed")
        return report

    return audit_broken


def statuses(report: dict, kind: str) -> set[str]:
    return {check["status"] for check in report["checks"] if check["check"] == kind}


@pytest.mark.slow
def test_a_sound_service_passes_under_both_methods(audit, drafter):
    code, report = audit("--drafter", str(drafter))
    assert (code, report["verdict"]) == (0, "passed")
    assert {check["method"] for check in report["checks"]} == {"rejection", "foreseeable"}
    distributions = [check for check in report["checks"] if check["check"] == "distribution"]
    placed = [check for check in distributions if check["subject"].startswith("places")]
    first = [check for check in distributions if check not in placed]
    assert (len(first), len(placed)) == (8, 12)
    assert all(check["screening"]["num_samples"] == 800 for check in first)
    # So few samples see large errors only, and the report says so.
    assert all(check["power"] < 0.1 and 0.05 < check["reach"] < 0.3 for check in first)
    assert sum(check["origins"]["num_accepted"] for check in first) > 1000  # 4,500 is usual
    assert sum(check["screening"]["num_samples"] >= 40 for check in placed) >= 8
    assert statuses(report, "logprobs") == {"passed"}


@pytest.mark.slow
def test_drafts_from_another_process_are_audited_against_a_target_without_one(audit, drafter):
    words = ["--topology", "1+1", "--oversubscribe", "--verification", "foreseeable"]
    # Blocks are waited for: on a busy machine a draft process might never be in time. Of few rows
    # enough have one, since nobody waits for the others' then.
    for setting in ("speculation.miss_policy=draft_now", "engine.max_batch_rows=4"):
        words += ["--set", setting]
    code, report = audit("--drafter", str(drafter), *words, *FEWER)
    assert (code, report["verdict"]) == (0, "passed")
    assert report["service"]["speculation"] == "async"


@pytest.mark.slow
def test_a_running_service_is_audited_as_it_is(audit, tiny, start_service, drafter):
    flags = ("--target", str(tiny), "--speculation", "sync", "--drafter", str(drafter))
    address = start_service(*flags, "--verification", "coupled")
    code, report = audit("--connect", address)
    assert (code, report["verdict"]) == (0, "passed")
    assert report["service"]["verification"] == "coupled"
    assert statuses(report, "equality") == {"passed"}


BONUS_FROM_THE_ROW_BEFORE = """
from specserve.sampling.verification import verify
real = verify.prefix_ends
def prefix_ends(num_accepted, group):
    full = (num_accepted == group.verify_lens) & (group.verify_lens > 0)
    return real(num_accepted, group) - (full.long() if group.ratio else 0)
verify.prefix_ends = prefix_ends
"""
FORGETS_PENALTIES_OF_DRAFTED_TOKENS = """
import dataclasses
from specserve.sampling.verification import batch
real = batch.VerificationBatch.build
class Forgetful:
    def __init__(self, state):
        self.state = state
    def __getattr__(self, name):
        return getattr(self.state, name)
    def along(self, drafted):
        path = [self.state]
        for _ in drafted:
            path.append(path[-1].fork())
            path[-1].position += 1
            path[-1].num_generated += 1
        return path
def build(rows, device='cpu'):
    ratio = [row.verified_by is not batch.VerificationMethod.COUPLED for row in rows]
    return real(
        [
            dataclasses.replace(row, state=Forgetful(row.state)) if wrong else row
            for row, wrong in zip(rows, ratio)
        ],
        device,
    )
batch.VerificationBatch.build = staticmethod(build)
"""
ACCEPTS_FROM_THE_FIFTH = """
import torch
from specserve.sampling.verification import verify
real = verify.leading_accepts
def leading_accepts(accepted, group):
    if group.ratio is not None:
        sizes = group.verify_lens + 1
        starts = torch.repeat_interleave(group.starts, sizes)
        accepted = accepted | (torch.arange(len(accepted)) - starts >= 4)
    return real(accepted, group)
verify.leading_accepts = leading_accepts
"""
LOGPROBS_OF_THE_FIRST_ROW = """
from specserve.backends.torch import verification
from specserve.sampling.verification.method import VerificationMethod
real = verification._add_logprobs
def add_logprobs(found, logits, rows):
    logits, start = logits.clone(), 0
    for row in rows:
        end = start + len(row.drafted) + 1
        if row.method is not VerificationMethod.COUPLED:
            logits[start:end] = logits[start].clone()
        start = end
    real(found, logits, rows)
verification._add_logprobs = add_logprobs
"""
ACCEPT_ALL = """
from specserve.sampling.verification import method
prefix = method.AcceptedPrefix
method.accepted_prefix = lambda drafted, drawn: prefix(len(drafted), drawn[-1], False)
"""


REJECTION = ("--verification", "rejection")


@pytest.mark.slow
def test_a_service_with_wrong_bonus_tokens_fails_by_its_distribution(audit_broken, tiny, drafter):
    flags = ("--target", str(tiny), "--drafter", str(drafter), *REJECTION)
    report = audit_broken(BONUS_FROM_THE_ROW_BEFORE, *flags)
    assert statuses(report, "equality") == {"passed"}
    assert "failed" in statuses(report, "distribution")


def failed_distributions(report: dict) -> set[tuple[str, str]]:
    distributions = (check for check in report["checks"] if check["check"] == "distribution")
    return {
        (distribution["sampling"], distribution["subject"])
        for distribution in distributions
        if distribution["status"] == "failed"
    }


# Many of the tokens that are drafted for the embedded model are accepted in a row.


@pytest.mark.slow
def test_penalties_that_drafted_tokens_do_not_get_fail_where_there_are_some(audit_broken):
    report = audit_broken(FORGETS_PENALTIES_OF_DRAFTED_TOKENS, *REJECTION)
    assert {sampling for sampling, _ in failed_distributions(report)} == {"penalties, top 3, t 0.7"}
    assert statuses(report, "equality") == {"passed"}


@pytest.mark.slow
def test_an_error_that_begins_deep_in_blocks_fails_there_and_nowhere_else(audit_broken):
    report = audit_broken(ACCEPTS_FROM_THE_FIFTH, *REJECTION)
    assert {subject for _, subject in failed_distributions(report)} == {"places 5+"}


@pytest.mark.slow
def test_log_probabilities_of_unseeded_answers_are_the_targets(audit_broken, tiny, drafter):
    flags = ("--target", str(tiny), "--drafter", str(drafter), *REJECTION)
    report = audit_broken(LOGPROBS_OF_THE_FIRST_ROW, *flags, sizes=FEWER)
    assert statuses(report, "logprobs") == {"failed"}
    assert statuses(report, "equality") == {"passed"}
    assert not failed_distributions(report)


@pytest.mark.slow
def test_a_service_that_accepts_too_much_fails_by_its_text(audit_broken, tiny):
    flags = ("--target", str(tiny), "--drafter", "ngram", "--verification", "coupled")
    report = audit_broken(ACCEPT_ALL, *flags, sizes=FEWEST)
    (check,) = (check for check in report["checks"] if check["check"] == "equality")
    assert check["num_different"] > 0
    assert check["first_difference"].startswith("request ")


@pytest.mark.slow
def test_where_no_draft_is_verified_nothing_is_shown(audit, drafter):
    words = ("--drafter", str(drafter), "--verification", "rejection", *FEWEST)
    code, report = audit(*words, "--set", "speculation.min_survival=1")
    assert (code, report["verdict"]) == (1, "not exercised")


def refused(capsys, *words: str) -> str:
    assert main(["audit", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("specserve: ")


def test_what_cannot_be_audited_is_refused_before_anything_starts(capsys, tmp_path):
    assert refused(capsys, "--drafter", "nobody").startswith("speculation.drafter: 'nobody' is no")
    assert refused(capsys, "--speculation", "off").startswith("--speculation: is off")
    (tmp_path / "off.toml").write_text('[speculation]\nmode = "off"\n')
    off = refused(capsys, "--config", str(tmp_path / "off.toml"))
    assert off.startswith("--speculation: is off")
    assert refused(capsys, "--drafter", "ngram", "--verification", "trust").startswith(
        "speculation.verification: "
    )
    words = ("--connect", "127.0.0.1:1", "--drafter", "ngram")
    assert refused(capsys, *words).startswith("--connect: a running service keeps")


@pytest.mark.slow
def test_a_service_that_does_not_speculate_is_refused(capsys, start_service):
    words = ("--connect", start_service("--speculation", "off"), "--requests", "1", "--quick")
    assert main(["audit", *words]) == 2
    assert "does not speculate" in capsys.readouterr().err
