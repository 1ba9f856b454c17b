"""A drafter that was made for fewer positions than rows have is used as far as it goes."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import specserve
from specserve.client import Client
from specserve.types import TokenOrigin
from tests.service.chaos import end
from tests.service.draft_watch import DraftWatch
from tests.service.launched import Launched

DRAFTERS = Path(specserve.__file__).parent / "assets" / "drafters"
NUM_POSITIONS = 96
PROMPT = "def main():\n    "
# Whatever drafts cost: they do not pay before so small a target.
SYNC = ("sync", "--set", "speculation.min_survival=0")
ASYNC = (
    "async",
    "--topology",
    "1+1",
    "--oversubscribe",
    "--set",
    "speculation.miss_policy=draft_now",
)


def short(folder: Path, name: str) -> Path:
    """The embedded drafter, with fewer positions."""
    shutil.copytree(DRAFTERS / name, folder)
    config = folder / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"max_position_embeddings": NUM_POSITIONS}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("dspark", SYNC, id="dspark-sync"),
        pytest.param("lm", ASYNC, id="lm-async"),
        pytest.param("dspark", ASYNC, id="dspark-async"),
        pytest.param("lm", SYNC, id="lm-sync"),
    ],
)
def test_nothing_is_drafted_beyond_the_positions_of_a_drafter(tmp_path, service, name, mode):
    drafter = short(tmp_path / name, name)
    flags = ["--oversubscribe", "--drafter", str(drafter)]
    launched = Launched(*flags, "--speculation", *mode)
    try:
        if mode is ASYNC:
            with closing(DraftWatch(launched.address())) as watch:
                assert watch.wait_until_serving()
        with Client(launched.address()) as client, Client(service) as plain:
            fields = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}
            answer = client.generate(PROMPT, **fields)
            long = client.generate(PROMPT * 30, **fields | {"max_tokens": 20})
            assert answer.text == plain.generate(PROMPT, **fields).text
    finally:
        end(launched)
    start = answer.usage.num_prompt_tokens
    drafted = [
        start + place
        for place, origin in enumerate(answer.samples[0].origins)
        if origin is TokenOrigin.DRAFTED
    ]
    assert len(drafted) > 15
    assert max(drafted) < NUM_POSITIONS
    assert TokenOrigin.DRAFTED not in long.samples[0].origins
    assert launched.output.count(f"was made for {NUM_POSITIONS} positions") == 1
    assert "failed" not in launched.output
