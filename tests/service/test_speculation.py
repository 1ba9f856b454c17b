"""`--speculation sync` through real processes: the same text, and an account of what was done."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import grpc
import pytest

from specserve.api.call import SpecOptions
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.client import Client
from specserve.errors import SpecserveError
from specserve.processes.local_service import local_service
from specserve.types import TokenOrigin
from tests.exactness.workload import MAX_MODEL_LEN, Outcome, differing, run, seeded_requests

LIMIT = ("--max-model-len", str(MAX_MODEL_LEN))
SYNC = (*LIMIT, "--speculation", "sync", "--drafter", "ngram")
REQUESTS = seeded_requests(100)
REPETITIVE = "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2,"


@pytest.fixture(scope="module")
def speculating() -> Iterator[str]:
    # Whatever drafts cost: before so small a target few pay.
    flags = ["--target", "tiny", "--oversubscribe", "--min-survival", "0", *SYNC]
    with local_service(flags) as address:
        yield address


@pytest.fixture(scope="module")
def plain(service: str) -> list[Outcome]:
    return run(service, REQUESTS, concurrency=16)


@pytest.mark.slow
def test_seeded_requests_have_the_text_of_plain_decoding(service: str, speculating: str):
    requests = seeded_requests(24, seed=4)
    plain = run(service, requests, concurrency=8)
    assert differing(plain, run(speculating, requests, concurrency=8, shuffle_seed=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="one rank"),
        pytest.param(("--topology", "2+0", "--oversubscribe"), id="two ranks"),
        pytest.param(("--gamma", "2"), id="short blocks"),
        pytest.param(("--set", "speculation.min_survival=0.5"), id="only likely tokens"),
        pytest.param(("--verification", "rejection"), id="a default that seeds override"),
    ],
)
def test_many_seeded_requests_have_the_text_of_plain_decoding(
    plain: list[Outcome], start_service: Callable[..., str], flags: tuple[str, ...]
):
    address = start_service(*SYNC, *flags)
    assert differing(plain, run(address, REQUESTS, concurrency=16, shuffle_seed=1)) == []


@pytest.mark.slow
def test_an_answer_says_what_was_drafted(speculating: str):
    with Client(speculating) as client:
        answer = client.generate(
            REPETITIVE, temperature=0, max_tokens=40, spec=SpecOptions(return_stats=True)
        )
    record, (sample,) = answer.spec, answer.samples
    assert record is not None
    assert sample.origins.count(TokenOrigin.DRAFTED) == record.num_accepted_tokens > 0
    assert sum(record.num_accepted_tokens_per_pos) == record.num_accepted_tokens
    assert record.num_accepted_tokens <= record.num_draft_tokens
    assert 0 < record.num_drafts < 40


@pytest.mark.slow
def test_a_request_can_do_without_drafts_or_with_few(speculating: str):
    with Client(speculating) as client:
        for spec, most in ((SpecOptions(mode="off", return_stats=True), 0),
                           (SpecOptions(max_verify_len=1, return_stats=True), 1)):  # fmt: skip
            record = client.generate(REPETITIVE, temperature=0, max_tokens=24, spec=spec).spec
            assert record is not None
            assert record.num_draft_tokens <= most * max(record.num_drafts, 1)
            assert (record.num_drafts > 0) == (most > 0)
        with pytest.raises(SpecserveError, match="'async' is not what this service does"):
            client.generate("x", spec=SpecOptions(mode="async"))


@pytest.mark.slow
def test_the_service_says_how_it_speculates(speculating: str):
    with Client(speculating) as client:
        client.generate(REPETITIVE, temperature=0, max_tokens=24)
    with grpc.insecure_channel(speculating) as channel:
        stub = stubs.SpecInfoStub(channel)
        config = stub.GetSpecConfig(pb.GetSpecConfigRequest())
        assert (config.mode, config.gamma, config.verification) == ("sync", 5, "foreseeable")
        assert "ngram" in config.drafter.lower()
        watch = stub.WatchSpecStats(pb.WatchSpecStatsRequest(interval_s=0.3))
        for stats in watch:  # published a few times a second
            if stats.num_drafts:
                break
        watch.cancel()
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
    assert stats.num_draft_tokens >= stats.num_accepted_tokens


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--speculation", "async"), "speculation.mode: async needs a draft process"),
        (("--topology", "2+1", "--speculation", "sync"),
         "use --speculation async or auto, or --topology 2+0"),
        (("--speculation", "maybe"), "speculation.mode: 'maybe' is not known"),
        (("--speculation", "sync", "--drafter", "nothere"), "speculation.drafter: 'nothere'"),
        (("--speculation", "sync", "--drafter", "ngram", "--verification", "trust"),
         "speculation.verification: 'trust' is not known (rejection, foreseeable, coupled)"),
        pytest.param(
            ("--speculation", "sync", "--drafter", "ngram", "--gamma", "0"), "speculation.gamma",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_launch_that_cannot_speculate_says_why_in_one_line(flags, message):
    command = [
        sys.executable,
        "-m",
        "specserve",
        "launch",
        "--target",
        "tiny",
        "--port",
        "0",
        *flags,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert message in ended.stderr.splitlines()[-1]
