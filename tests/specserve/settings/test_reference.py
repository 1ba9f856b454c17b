"""Every setting is in the reference and in `--help`, can be set, and those that went say so."""

import argparse
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draft_node.prespeculation.draft_batches import BatchSettings
from specserve.api.call import MAX_MESSAGE_BYTES, STREAM_BUFFER_ROUNDS
from specserve.commands.config_table import in_words
from specserve.commands.service_options import add_service_options, flag_of, read_config
from specserve.errors import InvalidField
from specserve.processes.launch import _STARTUP_TIMEOUT_S
from specserve.settings.config import (
    BLOCK_SIZE,
    DRAFTER_BITS,
    NUM_KEPT,
    Config,
    known_keys,
    load_config,
    parse_override,
)
from specserve.settings.setting_names import REMOVED
from specserve.validation import MAX_LOGPROBS, MAX_SAMPLES
from target_node.speculation.miss_policy import MissPolicy

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADER = "| setting | flag | default | what it does | when you would change it |"

# One of each that is not the default.
VALUES: dict[str, Any] = {
    "model.target": "tiny",
    "model.name": "mine",
    "model.dtype": "bfloat16",
    "model.generation_config": "none",
    "model.tool_call_parser": "hermes",
    "model.ballast": "60M",
    "model.max_model_len": 100,
    "topology.topology": "1+1",
    "topology.device": "cpu",
    "topology.threads": 2,
    "topology.oversubscribe": True,
    "topology.mps": True,
    "topology.nnodes": 2,
    "topology.node_rank": 1,
    "topology.rendezvous": "10.0.0.1:29400",
    "topology.spread": "1+0,0+1",
    "topology.draft_address": "127.0.0.1:7500",
    "topology.private_network": True,
    "topology.rendezvous_timeout_s": 60.0,
    "topology.node_timeout_s": 2.5,
    "engine.kv_memory": "64MiB",
    "engine.kv_dtype": "bfloat16",
    "engine.max_batch_rows": 3,
    "engine.max_batch_tokens": 30,
    "engine.prefix_cache": False,
    "engine.deterministic": False,
    "engine.cuda_graphs": True,
    "engine.hang_timeout_s": 9.5,
    "server.host": "0.0.0.0",
    "server.grpc_port": 0,
    "server.http": False,
    "server.http_port": 0,
    "server.api_key_file": "keys",
    "server.insecure": True,
    "server.allowed_hosts": ("gpu7.example.org", "10.0.0.7"),
    "server.max_requests_per_key": 5,
    "server.tls_cert": "cert.pem",
    "server.tls_key": "key.pem",
    "server.lenient": True,
    "server.max_stored_responses": 3,
    "server.stored_responses_memory": "16MiB",
    "server.stored_responses_ttl_s": 60.5,
    "server.max_queued_requests": 7,
    "server.drain_timeout_s": 0.0,
    "server.drain_notice_s": 1.5,
    "speculation.mode": "sync",
    "speculation.drafter": "ngram",
    "speculation.colocated_drafter": "ngram",
    "speculation.local_head": "head",
    "speculation.verification": "coupled",
    "speculation.gamma": 3,
    "speculation.min_survival": 0.25,
    "speculation.verify_policy": "threshold",
    "speculation.fan_out": 4,
    "speculation.saguaro_c": 0.5,
    "speculation.miss_policy": "skip",
    "speculation.draft_timeout_s": 2.5,
    "speculation.link": "nccl",
    "speculation.draft_threads": 2,
    "telemetry.log_level": "debug",
    "telemetry.log_interval_s": 2.5,
    "telemetry.otlp_endpoint": "http://127.0.0.1:4318",
}


def rows() -> dict[str, list[str]]:
    """The cells behind the setting, by it; those of a section stand below its heading."""
    found: dict[str, list[str]] = {}
    for section, text in re.findall(
        r"^## `\[(\w+)\]`[^\n]*\n(.*?)(?=^## |\Z)", REFERENCE, re.M | re.S
    ):
        assert text.count(HEADER) == 1
        for line in re.findall(r"^\| `.*\|$", text, re.M):
            setting, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            assert setting.strip("` ").startswith(f"{section}."), setting
            found[setting.strip("` ")] = cells
    return found


def value_in(config: Config, dotted: str) -> Any:
    section, _, key = dotted.partition(".")
    return getattr(getattr(config, section), key)


def test_the_reference_has_every_setting_once_and_in_order():
    assert list(rows()) == sorted(rows(), key=known_keys().index)
    assert sorted(rows()) == sorted(known_keys())
    assert REFERENCE.count("\n| `") == len(known_keys())


@pytest.mark.parametrize("dotted", known_keys())
def test_the_reference_has_flag_and_default(dotted: str):
    flag, default, what, when = rows()[dotted]
    assert flag == f"`{flag_of(dotted)}`"
    usual = value_in(Config(), dotted)
    if usual in (None, ()):
        assert default
        assert not default.startswith("None")
    else:
        assert default == f"`{in_words(usual)}`"
    assert what
    assert when


@pytest.mark.parametrize("dotted", known_keys())
def test_a_flag_a_file_and_set_reach_every_setting(dotted: str, tmp_path: Path):
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    wish, flag = VALUES[dotted], flag_of(dotted)
    section, _, key = dotted.partition(".")
    assert re.search(rf"{flag}\b", parser.format_help())
    words = [flag, *(map(str, wish) if isinstance(wish, tuple) else [str(wish)])]
    if wish is True:
        words = [flag]
    if wish is False:
        words = [flag.replace("--", "--no-", 1)]
    path = tmp_path / "serve.toml"
    toml = msgspec.json.encode(wish).decode()
    path.write_text(f"[{section}]\n{key} = {toml}\n")
    ways = (
        read_config(parser.parse_args(words)),
        load_config(path, {}),
        read_config(parser.parse_args(["--set", f"{dotted}={in_words(wish)}"])),
    )
    own = msgspec.structs.replace(getattr(Config(), section), **{key: wish})
    expected = msgspec.structs.replace(Config(), **{section: own})
    assert expected != Config()
    assert list(ways) == [expected] * 3


@pytest.mark.parametrize("dotted", REMOVED)
def test_a_setting_that_went_says_what_to_do_instead(dotted: str, tmp_path: Path):
    """In its section, in a wrong one, in none, and on a command line."""
    section, _, key = dotted.partition(".")
    told = f"is no setting any more; {REMOVED[dotted]}"
    path = tmp_path / "serve.toml"
    for text, field in (
        (f"[{section}]\n{key} = 1\n", dotted),
        (f"[telemetry]\n{key} = 1\n", f"telemetry.{key}"),
        (f"{key} = 1\n", key),
    ):
        path.write_text(text)
        with pytest.raises(InvalidField) as caught:
            load_config(path, {})
        assert str(caught.value) == f"{field}: {told}"
    with pytest.raises(InvalidField) as caught:
        load_config(None, dict([parse_override(f"{dotted}=1")]))
    assert str(caught.value) == f"{dotted}: {told}"
    with pytest.raises(InvalidField) as caught:
        parse_override(f"{key}=1")
    assert str(caught.value) == f"{key}: {told}"
    assert "\n" not in told


def test_what_is_advised_instead_exists():
    for text in REMOVED.values():
        assert text.startswith(("leave it out: ", "write "))
        for named in re.findall(r"\b(?:model|topology|engine|server|speculation)\.\w+", text):
            assert named in known_keys()
        for flag in re.findall(r"--[a-z-]+", text):
            assert flag in {flag_of(dotted) for dotted in known_keys()}


def test_what_is_told_of_constants_is_so():
    mib = MAX_MESSAGE_BYTES / 2**20
    wait_ms = MissPolicy().max_wait_s * 1e3
    batches = BatchSettings()
    for dotted, words in {
        "engine.block_size": f"have {BLOCK_SIZE} tokens",
        "server.max_samples": f"up to {MAX_SAMPLES}",
        "server.max_logprobs": f"up to {MAX_LOGPROBS} log",
        "server.max_message_bytes": f"up to {mib:g} MiB",
        "server.stream_buffer_rounds": f"lag {STREAM_BUFFER_ROUNDS} rounds",
        "speculation.num_kept": f"their {NUM_KEPT} likeliest",
        "speculation.wave": f"up to {batches.size}, or to {batches.most_blocks(10**6)} for many",
        "speculation.draft_wait_ms": f"for {wait_ms:g} ms",
        "speculation.drafter_bits": f"in {DRAFTER_BITS} bits",
    }.items():
        assert words in REMOVED[dotted]
    assert _STARTUP_TIMEOUT_S == 1800  # half an hour


def test_the_changelog_lists_what_went():
    unreleased = CHANGELOG.partition("## [Unreleased]")[2].partition("\n## [")[0]
    for dotted in REMOVED:
        assert re.search(rf"^- `{re.escape(dotted)}`.*: ", unreleased, re.M), dotted
