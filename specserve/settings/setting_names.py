# pyright: strict
"""A name that is no setting: which one was meant, or what to write instead of one that was.

Knows names, and neither types nor values.
"""

import difflib
from collections.abc import Sequence

from specserve.settings.foreign_names import setting_of_key

_HOMES = {"port": "server.grpc_port"}  # as its flag is called

# Settings that there were, and what to do instead.
REMOVED = {
    "model.half_weights": "leave it out: weights that are stored in 16 bits stay so where nothing "
    "is rounded; --dtype bfloat16 or float16 halves others",
    "topology.pin": "write topology.oversubscribe = true (--oversubscribe) for processes that are "
    "tied to no cores",
    "topology.collectives": "leave it out: ranks meet over nccl on GPUs of their own, else gloo",
    "engine.num_blocks": "write engine.kv_memory (--kv-memory SIZE, such as 8GiB)",
    "engine.block_size": "leave it out: KV blocks have 16 tokens",
    "server.max_samples": "leave it out: a request may have an n of up to 64",
    "server.max_logprobs": "leave it out: a request may ask for up to 20 log probabilities",
    "server.max_message_bytes": "leave it out: a message has up to 16 MiB, and streams have any "
    "number of messages",
    "server.stream_buffer_rounds": "leave it out: a reader may lag 4096 rounds behind",
    "server.startup_timeout_s": "leave it out: a process may take half an hour to start",
    "speculation.layout": "write sample_from_anchor into the drafter's config.json: true, or false "
    "if the first slot of a block is not drafted",
    "speculation.num_kept": "leave it out: draft probabilities keep their 512 likeliest tokens",
    "speculation.wave": "leave it out: as many blocks are drafted together as are ready in time, "
    "up to 16, or to 64 for many rows; speculation.fan_out (--fan-out) limits those of a row and "
    "round",
    "speculation.fan_out_rule": "leave it out: blocks are shared out by measured hit rates",
    "speculation.draft_wait_ms": "leave it out: a round waits for drafts for 50 ms at most; write "
    "speculation.miss_policy (--miss-policy) = skip for no waits",
    "speculation.drafter_bits": "leave it out: on a CPU drafters compute in 8 bits where that is "
    "faster, which changes no text",
}
_REMOVED_KEYS = {dotted.partition(".")[2]: dotted for dotted in REMOVED}


def removal_of(name: str) -> str | None:
    """What is wrong with a key, or "section.key", that was a setting; None for any other."""
    dotted = _REMOVED_KEYS.get(name.rpartition(".")[2])
    return None if dotted is None else f"is no setting any more; {REMOVED[dotted]}"


def home_of(key: str, known: Sequence[str]) -> str | None:
    """The "section.key" of a key that stands in no section or in a wrong one, if there is one."""
    if (home := _HOMES.get(key) or setting_of_key(key)) is not None:
        return home
    return next((dotted for dotted in known if dotted.partition(".")[2] == key), None)


def unknown_key(dotted: str, known: Sequence[str]) -> str:
    """What is wrong with "section.key", where the section exists."""
    if (removal := removal_of(dotted)) is not None:
        return removal
    near = home_of(dotted.partition(".")[2], known) or _nearest(dotted, known)
    return f"is no known key (nearest: {near})"


def unknown_section(name: str, known: Sequence[str]) -> str:
    """What is wrong with the name of a section."""
    sections = sorted({dotted.partition(".")[0] for dotted in known})
    return f"is no known section (nearest: {_nearest(name, sections)})"


def stray_key(key: str, known: Sequence[str]) -> str:
    """What is wrong with a key that stands in no section."""
    if (removal := removal_of(key)) is not None:
        return removal
    if (home := home_of(key, known)) is None:
        by_key = {dotted.partition(".")[2]: dotted for dotted in known}
        home = by_key[_nearest(key, list(by_key))]
    section, _, name = home.partition(".")
    return f"stands in no section (nearest: {home}, which is {name} under [{section}])"


def _nearest(name: str, known: Sequence[str]) -> str:
    (near,) = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return near
