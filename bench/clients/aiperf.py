# pyright: strict
"""aiperf: chats and completions in streams, with its table of speculative decoding.

That table needs no flag: aiperf prints it where answers have `metrics.speculative_decoding`.
"""

import json

from bench.clients.setting import Command, KnownClient, Setting

_NOISE = ("GPU ", "Event loop for", "Platform: ", "Metric semantics", "Export: ")


def _commands(setting: Setting) -> list[Command]:
    lines = [json.dumps({"text": prompt}) for prompt in setting.prompts]
    prompts = setting.write_lines("aiperf.jsonl", lines)
    shared = (
        *("aiperf", "profile", "--model", setting.model, "--url", setting.url, "--streaming"),
        *("--tokenizer", str(setting.tokenizer), "--use-server-token-count"),
        *("--input-file", str(prompts), "--custom-dataset-type", "single_turn"),
        *("--request-count", str(setting.num_requests), "--concurrency", "2"),
        *("--extra-inputs", f"max_tokens:{setting.num_tokens}"),
        *("--extra-inputs", "temperature:0", "--extra-inputs", "ignore_eos:true"),
        *("--ui", "none", "--artifact-dir", str(setting.scratch / "aiperf")),
    )
    chats = ("--endpoint-type", "chat", "--per-chunk-usage")
    completions = ("--endpoint-type", "completions")
    return [Command((*shared, *kind)) for kind in (chats, completions)]


def _says_nothing(line: str) -> bool:
    """Its log, and what it says of GPUs and of its own pace on a busy machine."""
    words = line.split()
    is_log = len(words) > 1 and words[1] in ("INFO", "NOTICE")
    return is_log or any(noise in line for noise in _NOISE)


AIPERF = KnownClient(
    name="aiperf",
    package="aiperf",
    install="aiperf",
    commands=_commands,
    expects="Spec Decode Steps",
    drops=_says_nothing,
)
