# pyright: strict
"""guidellm: chats in streams, two at a time."""

import json

from bench.clients.setting import Command, KnownClient, Setting


def _commands(setting: Setting) -> list[Command]:
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
    return [Command(words, {"HF_HUB_OFFLINE": "1"})]


GUIDELLM = KnownClient(
    name="guidellm",
    package="guidellm",
    install="torch==2.13.0+cpu guidellm",  # another build of torch is gigabytes of CUDA
    commands=_commands,
    expects="Server Throughput Statistics",
    drops=lambda line: "examples/s" in line or "_log_update" in line,
)
