"""A machine and a model for which launches are resolved."""

from pathlib import Path

from specserve.models.config import ModelSpec, RopeSpec
from specserve.settings.config import Config, SpeculationConfig, TopologyConfig
from specserve.settings.hardware import CudaDevice, Hardware
from specserve.settings.resolve import resolve

AUTO = Config()
FOLDER = Path("/models/tiny")
GIB = 1 << 30
MACHINE = Hardware(cores=(0, 1, 2, 3), cpu_name="test", available_memory=8 * GIB)
DEVICES = tuple(CudaDevice(index=i, name="test", memory=80 * GIB) for i in range(2))
SPEC = ModelSpec(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_real_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    max_position_embeddings=2048,
    rms_norm_eps=1e-6,
    rope=RopeSpec(theta=10_000.0),
    qk_norm=True,
    tie_word_embeddings=True,
    eos_token_ids=(0,),
    dtype="bfloat16",
)


def resolved(config: Config = AUTO, hardware: Hardware = MACHINE):
    return resolve(config, hardware, SPEC, FOLDER)


def speculating(mode: str, topology: str = "1+0", **fields) -> Config:
    speculation = SpeculationConfig(mode=mode, **fields)
    return Config(topology=TopologyConfig(topology=topology), speculation=speculation)
