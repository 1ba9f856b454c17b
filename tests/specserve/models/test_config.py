import json

import pytest

from specserve.errors import Unsupported
from specserve.models.config import RopeSpec, read_spec
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_config


def test_old_and_new_rope_fields_mean_the_same(tmp_path):
    new = read_spec(write_config(tmp_path / "new", QWEN3))
    old = read_spec(write_config(tmp_path / "old", QWEN3, rope_parameters=None, rope_theta=10000))
    assert new == old
    assert new.rope == RopeSpec(10000.0)


def test_llama3_scaling_is_read_in_both_spellings(tmp_path):
    scaling = LLAMA["rope_scaling"]
    old = read_spec(write_config(tmp_path / "old", LLAMA))
    new = read_spec(
        write_config(
            tmp_path / "new",
            LLAMA,
            rope_theta=None,
            rope_scaling=None,
            rope_parameters={**scaling, "rope_theta": 500000.0},
        )
    )
    assert old == new
    assert old.rope == RopeSpec(500000.0, "llama3", 8.0, 1.0, 4.0, 32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "linear", "factor": 8.0}, RopeSpec(500000.0, "linear", 8.0)),
        ({"rope_type": "linear", "factor": 8.0, "rope_theta": 7.0}, RopeSpec(7.0, "linear", 8.0)),
        ({}, RopeSpec(1234.0, "linear", 2.0)),
        ({"unknown": 1}, RopeSpec(500000.0)),
        (None, RopeSpec(1234.0, "linear", 2.0)),
    ],
)
def test_of_both_rope_fields_the_one_counts_that_transformers_takes(tmp_path, scaling, expected):
    transformers = pytest.importorskip("transformers")
    parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1234.0}
    fields = {"rope_theta": 500000.0, "rope_scaling": scaling, "rope_parameters": parameters}
    folder = write_config(tmp_path, QWEN3, model_type="qwen3", **fields)
    assert read_spec(folder).rope == expected
    theirs = transformers.AutoConfig.from_pretrained(folder).rope_parameters
    assert theirs["rope_theta"] == expected.theta
    assert theirs.get("factor", 1.0) == expected.factor


def test_a_scaling_that_is_not_supported_is_refused_beside_parameters_that_are(tmp_path):
    parameters = {"rope_type": "default", "rope_theta": 1e4}
    scaling = {"rope_type": "longrope", "factor": 4.0}
    fields = {"rope_parameters": parameters, "rope_scaling": scaling}
    with pytest.raises(Unsupported, match=r"rope_scaling\.rope_type: 'longrope'"):
        read_spec(write_config(tmp_path, QWEN3, **fields))


def test_absent_fields_take_the_architectures_defaults(tmp_path):
    spec = read_spec(write_config(tmp_path, LLAMA, num_key_value_heads=None, eos_token_id=None))
    assert spec.head_dim == 8
    assert spec.num_kv_heads == 8
    assert spec.eos_token_ids == ()
    assert not spec.qk_norm


def test_torch_dtype_is_the_older_name_of_dtype(tmp_path):
    spec = read_spec(write_config(tmp_path, QWEN3, dtype=None, torch_dtype="bfloat16"))
    assert spec.dtype == "bfloat16"


def test_generation_config_has_the_last_word_on_eos(tmp_path):
    write_config(tmp_path, QWEN3, eos_token_id=[1, 2])
    assert read_spec(tmp_path).eos_token_ids == (1, 2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 1]}))
    assert read_spec(tmp_path).eos_token_ids == (3, 1)


def test_a_disabled_sliding_window_is_ignored(tmp_path):
    write_config(tmp_path, QWEN3, sliding_window=4096, use_sliding_window=False)
    assert read_spec(tmp_path).num_layers == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["MambaForCausalLM"]),
        ("architectures", []),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("quantization_config", {"quant_method": "fp8"}),
        ("partial_rotary_factor", 0.5),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("hidden_size", "32"),
        ("hidden_size", 0),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", 1e30),
        ("rms_norm_eps", 1e-300),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("hidden_size", 10**9),
        ("hidden_size", 10**400),
        ("intermediate_size", 10**9),
        ("num_hidden_layers", 10**6),
        ("num_attention_heads", 2**63),
        ("vocab_size", 10**9),
        ("max_position_embeddings", 2**62),
        ("vocab_size", None),
        ("dtype", "float8_e4m3fn"),
        ("eos_token_id", 64),
    ],
)
def test_what_is_not_implemented_is_refused_naming_the_field(tmp_path, field, value):
    write_config(tmp_path, QWEN3, **{field: value})
    with pytest.raises(Unsupported, match=field):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("rope", "field"),
    [
        ({"rope_type": "longrope", "factor": 4.0}, "rope_scaling.rope_type: 'longrope'"),
        ({"rope_type": "yarn"}, "rope_scaling.factor is missing"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1}, "beta_fast must exceed beta_slow"),
        ({"type": "dynamic", "factor": 2.0}, "rope_scaling.rope_type: 'dynamic'"),
        ({"rope_type": "linear"}, "rope_scaling.factor is missing"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_type": "default", "rope_theta": float("nan")}, "rope_theta"),
        ({"rope_type": "default", "rope_theta": 1e-300}, "rope_theta"),
        ({"rope_type": "default", "rope_theta": 1e300}, "rope_theta"),
        ({"rope_type": "linear", "factor": 1e300}, "factor"),
        ({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1e300}, "attention_factor"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": float("nan")}, "mscale"),
        (
            {"rope_type": "yarn", "factor": 1e4, "original_max_position_embeddings": 2**39},
            "rope factor: makes 5497558138880000 positions",
        ),
    ],
)
def test_other_rope_kinds_are_refused_naming_the_field(tmp_path, rope, field):
    write_config(tmp_path, QWEN3, rope_parameters=None, rope_scaling=rope)
    with pytest.raises(Unsupported, match=field):
        read_spec(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", "{nonsense", "\xff", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_one_clear_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(Unsupported, match=r"config\.json"):
        read_spec(tmp_path)


def test_a_folder_without_config_is_no_model(tmp_path):
    with pytest.raises(Unsupported, match="no model folder"):
        read_spec(tmp_path)


def test_parameters_are_counted_as_stored(tmp_path):
    tied = read_spec(write_config(tmp_path / "tied", QWEN3))
    untied = read_spec(write_config(tmp_path / "untied", QWEN3, tie_word_embeddings=False))
    attention = 32 * 64 * 2 + 32 * 32 * 2
    layer = attention + 3 * 32 * 64 + 2 * 32 + 2 * 8
    assert tied.num_params == 64 * 32 + 2 * layer + 32
    assert untied.num_params == tied.num_params + 64 * 32
