"""What `generate` and `info` show of an answer, and what they say of the rest."""

import msgspec
import pytest

from specserve.cli import main
from specserve.client import Client
from tests.specserve.api.conftest import model_folder, rig, shared_rig  # noqa: F401 - fixtures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), ""),
        (("--logprobs", "0"), "specserve: not shown: --logprobs; --json shows them\n"),
        (
            ("--logprobs", "2", "--prompt-logprobs", "1", "--n", "2"),
            "specserve: not shown: --logprobs, --prompt-logprobs; --json shows them\n",
        ),
        (("--logprobs", "2", "--json"), ""),
    ],
)
def test_log_probabilities_that_plain_text_lacks_are_told(rig, capsys, flags, told):  # noqa: F811
    assert main(["generate", "--connect", rig.address, *flags, "fox"]) == 0
    assert capsys.readouterr().err == told


def test_info_shows_a_service_in_the_words_of_a_launch(rig, capsys, monkeypatch):  # noqa: F811
    model_info = Client.model_info

    def with_defaults(client):
        sampling = {"top_p": 0.949999988079071, "top_k": 20}
        return msgspec.structs.replace(
            model_info(client), eos_token_ids=(0, 2), default_sampling=sampling
        )

    monkeypatch.setattr(Client, "model_info", with_defaults)
    assert main(["info", "--connect", rig.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
    shown = {name: value.partition("  ")[0] for name, value in words}  # without what it means
    assert shown["eos_token_ids"] == "0, 2"
    assert shown["default_sampling"] == "top_p 0.95, top_k 20"
    assert (shown["draining"], shown["has_chat_template"]) == ("false", "true")
    assert len(shown["api_uptime_s"].replace(".", "").lstrip("0")) <= 7  # digits that say something
