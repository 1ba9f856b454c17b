# pyright: strict
"""aiperf: chats and completions in streams, with its table of speculative decoding.

That table needs no flag: aiperf prints it where answers have `metrics.speculative_decoding`.
"""

import json

from bench.clients.setting import Command, KnownClient, Setting


def _commands(setting: Setting) -> list[Command]:
    lines = [json.dumps({"text": prompt}) for prompt in setting.prompts]
    prompts = setting.write_lines("aiperf.jsonl", lines)
    shared = (
        *("aiperf", "profile", "--model", setting.model, "--url", setting.url, "--streaming"),
        *("--tokenizer", str(setting.tokenizer), "--use-server-token-count", "--per-chunk-usage"),
        *("--input-file", str(prompts), "--custom-dataset-type", "single_turn"),
        *("--request-count", str(setting.num_requests), "--concurrency", "2"),
        *("--extra-inputs", f"max_tokens:{setting.num_tokens}"),
        *("--extra-inputs", "temperature:0", "--extra-inputs", "ignore_eos:true"),
        *("--ui", "none", "--artifact-dir", str(setting.scratch / "aiperf")),
    )
    return [Command((*shared, "--endpoint-type", kind)) for kind in ("chat", "completions")]


def _says_nothing(line: str) -> bool:
    """Its log, and what it looks for on GPUs."""
    words = line.split()
    return len(words) > 1 and (words[1] in ("INFO", "NOTICE") or "GPU Telemetry" in line)


AIPERF = KnownClient(
    name="aiperf",
    package="aiperf",
    install="aiperf",
    commands=_commands,
    expects="Spec Decode Steps",
    drops=_says_nothing,
)
