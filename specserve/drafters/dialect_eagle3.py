# pyright: strict
"""Published EAGLE-3 checkpoints: SafeAILab's and SGLang's format, and vllm-project/speculators'.

Both are one decoder layer, like DeepSpec's, but of a Llama's kind as a rule; they read three layers
of the target, which not all of them name, and draft among the target's most frequent tokens. How
long a chain is, SGLang's format leaves to whoever serves it.
"""

from pathlib import Path
from typing import Any, cast

import msgspec

from specserve.drafters.dialect_deepspec import check_feature_layers, draft_vocab_size
from specserve.drafters.spec import Eagle3Spec, FeaturesNorm
from specserve.errors import Unsupported
from specserve.models.config import ModelSpec, Positive, convert, decoder_spec

Config = dict[str, Any]

_USUAL_GAMMA = 5
_LONGEST_GAMMA = 16
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


class _Built(msgspec.Struct):
    """How the layer and what surrounds it are built; both formats have these keys."""

    draft_vocab_size: Positive | None = None
    target_hidden_size: Positive | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False  # EAGLE 3.1

    def features_norm(self, path: Path) -> FeaturesNorm:
        if self.norm_before_fc and self.fc_norm:
            raise Unsupported(f"{path}: norm_before_fc and fc_norm exclude each other")
        if self.fc_norm:
            return FeaturesNorm.APART
        return FeaturesNorm.TOGETHER if self.norm_before_fc else FeaturesNorm.NONE


class _EagleConfig(msgspec.Struct):
    """What SpecForge and ModelOpt write; all but the layers say how the one layer is built."""

    eagle_aux_hidden_state_layer_ids: list[int] = []
    use_aux_hidden_state: bool = True
    use_input_layernorm_in_first_layer: bool = True
    use_last_layernorm: bool = True
    use_mtp_layernorm: bool = False
    parallel_draft_step: int = 1


class _SglangFile(_Built):
    eagle_config: _EagleConfig | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


class _Method(msgspec.Struct):
    speculative_tokens: Positive | None = None


class _Methods(msgspec.Struct):
    proposal_methods: list[_Method] = []


class _SpeculatorsFile(_Built, kw_only=True):
    transformer_layer_config: Config
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    speculators_config: _Methods = msgspec.field(default_factory=_Methods)


def default_layers(num_target_layers: int) -> tuple[int, ...]:
    """The inputs of layers 2, L // 2 and L - 3, which are the outputs of those before them."""
    return 1, num_target_layers // 2 - 1, num_target_layers - 4


def read_sglang_eagle3(content: Config, path: Path) -> Eagle3Spec:
    """LlamaForCausalLMEagle3, or a Llama of one layer that says how many tokens it drafts."""
    file = convert(path, _without_nulls(content), _SglangFile)
    eagle = file.eagle_config or _EagleConfig()
    _refuse(path, eagle)
    decoder = _decoder({**content, "architectures": ["LlamaForCausalLM"]}, path)
    # Named by the layer whose output they are; at the top level, which vLLM reads, by input.
    layers = tuple(eagle.eagle_aux_hidden_state_layer_ids)
    layers = layers or tuple(layer - 1 for layer in file.eagle_aux_hidden_state_layer_ids or ())
    return _spec(path, "SGLang", decoder, layers, _USUAL_GAMMA, file)


def read_speculators_eagle3(content: Config, path: Path) -> Eagle3Spec:
    file = convert(path, _without_nulls(content), _SpeculatorsFile)
    nested = {"dtype": content.get("dtype"), **file.transformer_layer_config}
    kind = nested.get("model_type")
    if kind not in _ARCHITECTURES:
        raise Unsupported(
            f"{path}: transformer_layer_config.model_type: {kind!r} is not one of "
            f"{', '.join(_ARCHITECTURES)}"
        )
    if file.norm_before_residual is None:  # the library's default is not vLLM's
        raise Unsupported(f"{path}: norm_before_residual is missing; say true or false")
    methods = file.speculators_config.proposal_methods
    gamma = (methods[0].speculative_tokens if methods else None) or _USUAL_GAMMA
    decoder = _decoder({**nested, "architectures": [_ARCHITECTURES[kind]]}, path)
    # "Input of layer k + 1" is the output of layer k.
    layers = tuple(layer - 1 for layer in file.eagle_aux_hidden_state_layer_ids or ())
    return _spec(path, "speculators", decoder, layers, gamma, file)


def _without_nulls(content: Config) -> Config:
    """null is what a key says that is not there; so deep as these formats go."""
    return {
        key: _without_nulls(cast("Config", value)) if isinstance(value, dict) else value
        for key, value in content.items()
        if value is not None
    }


def _decoder(content: Config, path: Path) -> ModelSpec:
    decoder = decoder_spec(content, path)
    if decoder.num_layers != 1:
        raise Unsupported(f"{path}: num_hidden_layers: {decoder.num_layers}, only 1 is supported")
    return decoder


def _spec(
    path: Path,
    dialect: str,
    decoder: ModelSpec,
    layers: tuple[int, ...],
    gamma: int,
    built: _Built,
) -> Eagle3Spec:
    return Eagle3Spec(
        decoder=decoder,
        gamma=gamma,
        feature_layers=layers,
        num_target_layers=None,
        dialect=dialect,
        longest=max(gamma, _LONGEST_GAMMA),
        draft_vocab_size=draft_vocab_size(path, built.draft_vocab_size, decoder),
        target_hidden_size=built.target_hidden_size or decoder.hidden_size,
        norm_before_residual=bool(built.norm_before_residual),
        features_norm=built.features_norm(path),
        feeds_normed=built.norm_output,
        warnings=check_feature_layers(path, layers, None),
    )


def _refuse(path: Path, eagle: _EagleConfig) -> None:
    problems = {
        "use_aux_hidden_state": eagle.use_aux_hidden_state,
        "use_input_layernorm_in_first_layer": eagle.use_input_layernorm_in_first_layer,
        "use_last_layernorm": eagle.use_last_layernorm,
        "use_mtp_layernorm": not eagle.use_mtp_layernorm,
        "parallel_draft_step": eagle.parallel_draft_step == 1,
    }
    for field, supported in problems.items():
        if not supported:
            value = getattr(eagle, field)
            raise Unsupported(f"{path}: eagle_config.{field}: {value!r} is not supported")
