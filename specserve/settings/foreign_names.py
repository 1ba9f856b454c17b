# pyright: strict
"""What other servers call our settings: flags of vLLM, SGLang and llama.cpp, by "section.key".

For whoever comes from there: a name that is none here is refused with the one that is. They are
not taken as ours, for they do not all mean the same: a share of a GPU's memory is no size, a tensor
parallel size no topology.
"""

# One dash or two as they are typed; those with two also name keys of a file, with underscores.
FOREIGN_FLAGS: dict[str, tuple[str, ...]] = {
    "model.target": ("--model", "-m", "--model-path", "--hf-repo"),
    "model.name": ("--served-model-name", "--alias", "-a"),
    "model.max_model_len": ("--context-length", "--ctx-size", "-c", "--max-seq-len"),
    "topology.topology": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
    "topology.rendezvous": ("--dist-init-addr", "--rdzv-endpoint", "--master-addr"),
    "topology.device": ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    "topology.threads": ("-t",),
    "engine.max_batch_rows": ("--max-num-seqs", "--max-running-requests", "--parallel", "-np"),
    "engine.max_batch_tokens": (
        "--max-num-batched-tokens", "--chunked-prefill-size", "--batch-size", "-b",
        "--ubatch-size", "-ub",
    ),
    "engine.kv_memory": (
        "--gpu-memory-utilization", "--mem-fraction-static", "--kv-cache-memory-bytes",
        "--num-gpu-blocks-override",
    ),
    "engine.kv_dtype": ("--kv-cache-dtype", "--cache-type-k", "-ctk", "--cache-type-v", "-ctv"),
    "engine.prefix_cache": (
        "--enable-prefix-caching", "--no-enable-prefix-caching", "--disable-radix-cache",
    ),
    "engine.cuda_graphs": ("--enforce-eager", "--disable-cuda-graph"),
    "server.tls_cert": ("--ssl-certfile", "--ssl-cert-file"),
    "server.tls_key": ("--ssl-keyfile", "--ssl-key-file"),
    "speculation.mode": ("--speculative-algorithm", "--speculative-algo"),
    "speculation.drafter": (
        "--speculative-config", "-sc", "--speculative-model", "--speculative-draft-model-path",
        "--speculative-draft-model", "--model-draft", "-md",
    ),
    "speculation.gamma": (
        "--num-speculative-tokens", "--speculative-num-draft-tokens", "--speculative-num-steps",
        "--draft-max", "--draft-n", "--draft",
    ),
    "speculation.min_survival": ("--draft-p-min",),
}  # fmt: skip

_SETTINGS = {flag: dotted for dotted, flags in FOREIGN_FLAGS.items() for flag in flags}


def setting_of_flag(flag: str) -> str | None:
    """The "section.key" that a foreign flag is about."""
    return _SETTINGS.get(flag)


def setting_of_key(key: str) -> str | None:
    """The same of a key in a file, such as `tensor_parallel_size`."""
    return _SETTINGS.get("--" + key.replace("_", "-"))
