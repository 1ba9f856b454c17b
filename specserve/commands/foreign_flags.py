# pyright: strict
"""Flags that there are none here: refused in one line that says what to type instead.

Those of vLLM, SGLang and llama.cpp, and those that were ours.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from typing import Any, cast

from specserve.commands.service_options import flag_of
from specserve.errors import InvalidField
from specserve.settings.foreign_names import setting_of_flag
from specserve.settings.setting_names import removal_of

_OF_COMMANDS = {  # those of clients
    "--max-new-tokens": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--repeat-penalty": "--repetition-penalty",
    "--url": "--connect",
    "--base-url": "--connect",
    "--system-prompt": "--system",
}
_PROMPT = ("-p", "--prompt")
_ANSWERS = {  # where another name, with the value as it is, would be wrong
    "--n-gpu-layers": "type --device cuda: a device takes the whole model",
    "--gpu-memory-utilization": "type --kv-memory SIZE, such as 8GiB: it is no share",
    "--num-gpu-blocks-override": "type --kv-memory SIZE, such as 8GiB: in bytes",
    "--enable-prefix-caching": "leave it out: prefixes are cached (--no-prefix-cache: not)",
    "--no-enable-prefix-caching": "type --no-prefix-cache",
    "--enforce-eager": "type --no-cuda-graphs",
    "--speculative-algorithm": "type --drafter FOLDER|HUB_ID|ngram: its files say what it is",
    "--pipeline-parallel-size": "there is tensor parallelism: type --topology T+0",
    "--master-addr": "type --rendezvous HOST:PORT, of node 0: the same on every node",
    "--data-parallel-size": "start several services, each with a --port of its own",
    "--trust-remote-code": "leave it out: no code of a checkpoint is ever run",
    "--enable-auto-tool-choice": "leave it out: tools are served",
    "--reasoning-parser": "leave it out: what a model thinks is part of the content",
    "--chat-template": "put chat_template.jinja into the model's folder: it is read there",
    "--tokenizer": "leave it out: the tokenizer comes with the target",
    "--quantization": "leave it out: weights are taken as they are stored, or as --dtype says",
    "--allowed-origins": "type --allowed-hosts NAME: whose pages may ask without keys; no CORS",
    "--api-key": "type --api-key-file FILE, with a key a line: others can read command lines",
}
_SAME = {
    "-ngl": "--n-gpu-layers", "--gpu-layers": "--n-gpu-layers",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--disable-radix-cache": "--no-enable-prefix-caching",
    "--disable-cuda-graph": "--enforce-eager",
    "--speculative-algo": "--speculative-algorithm",
    "-pp": "--pipeline-parallel-size", "--pp-size": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size", "--dp-size": "--data-parallel-size",
    "--dp": "--data-parallel-size",
    "--tokenizer-path": "--tokenizer",
    "-q": "--quantization",
    "--page-size": "--block-size",
}  # fmt: skip


def refuse_foreign_flags(words: Sequence[str], own: Collection[str]) -> None:
    """Raise InvalidField for the first flag of `words` that another server has.

    `own` are the flags of the command, which mean what they mean here.
    """
    for index, word in enumerate(words):
        if word == "--":
            return
        flag, equals, value = word.partition("=")
        if not word.startswith("-") or " " in flag or flag in own:
            continue
        if not equals:
            value = words[index + 1] if index + 1 < len(words) else ""
        if (gone := _gone(flag, own)) is not None:
            raise InvalidField(flag, gone)
        if (answer := _answer(flag, "" if value.startswith("-") else value, own)) is not None:
            raise InvalidField(flag, f"is no flag here; {answer}")


def _gone(flag: str, own: Collection[str]) -> str | None:
    """What is wrong with a flag of ours that there was, of a command that can start a service."""
    if not flag.startswith("--") or "--topology" not in own:
        return None
    key = _SAME.get(flag, flag).removeprefix("--").removeprefix("no-").replace("-", "_")
    return removal_of(key)


def _answer(flag: str, value: str, own: Collection[str]) -> str | None:
    if (answer := _ANSWERS.get(_SAME.get(flag, flag))) is not None:
        return answer if "--topology" in own else None
    if flag in _PROMPT and "--ignore-eos" in own:
        return "the prompt stands alone: specserve generate PROMPT"
    if (ours := _OF_COMMANDS.get(flag)) is not None:
        return f"type {_typed(ours, value)}" if ours in own else None
    dotted = setting_of_flag(flag)
    if dotted is None or (ours := flag_of(dotted)) not in own:
        return None
    if dotted == "topology.topology":
        typed = f"{value}+0" if value.isdigit() and int(value) else "T+0"
        return f"type {ours} {typed} (T target ranks + D draft processes)"
    if flag in ("--speculative-config", "-sc"):
        return f"type {_from_json(value)}"
    return f"type {_typed(ours, value)}"


def _typed(flag: str, value: str) -> str:
    return f"{flag} {shlex.quote(value)}" if value else flag


def _from_json(text: str) -> str:
    """What vLLM's `--speculative-config` says, in our flags."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    given = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    drafter = "ngram" if given.get("method") == "ngram" else given.get("model")
    named = "FOLDER|HUB_ID|ngram" if drafter is None else shlex.quote(str(drafter))
    return f"--drafter {named} --gamma {given.get('num_speculative_tokens', 'TOKENS')}"
