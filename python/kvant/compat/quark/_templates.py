"""Quark's templates of language models: named schemes, and the layers of families that they are for.

Schemes, names of layers and exclusions are those of amd-quark 0.13.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvant._errors import usage_error
from kvant.compat.quark import _specs as s
from kvant.compat.quark._configuration import (
    AutoSmoothQuantConfig,
    QConfig,
    QLayerConfig,
    SmoothQuantConfig,
    algorithm_named,
)
from kvant.compat.quark._schemes import layer_of


def _layer(weight: Any, inputs: Any = None) -> QLayerConfig:
    specs = [None if spec is None else spec.to_quantization_spec() for spec in (weight, inputs)]
    return QLayerConfig(weight=specs[0], input_tensors=specs[1])


def _both(kind: Any, **options: Any) -> QLayerConfig:
    """One dtype for weights, and for inputs where their scales are dynamic."""
    return _layer(kind(ch_axis=-1, is_dynamic=False, **options), kind(ch_axis=-1, is_dynamic=True, **options))


def _under_scale(scales: Any, size: int, is_dynamic: bool) -> Any:
    """fp4 in groups, whose scales are quantized under one of the tensor."""
    codes = s.FP4PerGroupSpec(ch_axis=-1, group_size=size, is_dynamic=is_dynamic, scale_type="float32")
    return s.ScaleQuantSpec(codes, scales(scale_type="float32"))


def _two_levels(scales: Any, size: int) -> QLayerConfig:
    return _layer(_under_scale(scales, size, False), _under_scale(scales, size, True))


def _int4_fp8() -> QLayerConfig:
    fp8, int4 = s.FP8E4M3PerTensorSpec, s.Int4PerChannelSpec(ch_axis=0, scale_type="float32")
    return _layer(s.ProgressiveSpec(fp8(scale_type="float32"), int4), fp8(scale_type="float32", is_dynamic=True))


_int8, _fp8 = s.Int8PerTensorSpec, s.FP8E4M3PerTensorSpec
_SCHEMES: dict[str, Callable[[], QLayerConfig]] = {
    "int4_wo_32": lambda: _layer(s.Int4PerGroupSpec(ch_axis=-1, group_size=32)),
    "int4_wo_64": lambda: _layer(s.Int4PerGroupSpec(ch_axis=-1, group_size=64)),
    "int4_wo_128": lambda: _layer(s.Int4PerGroupSpec(ch_axis=-1, group_size=128)),
    "int4_wo_per_channel": lambda: _layer(s.Int4PerChannelSpec(ch_axis=0)),
    "int4_wa_64": lambda: _both(s.Int4PerGroupSpec, group_size=64),
    "uint4_wo_32": lambda: _layer(s.Uint4PerGroupSpec(ch_axis=-1, group_size=32)),
    "uint4_wo_64": lambda: _layer(s.Uint4PerGroupSpec(ch_axis=-1, group_size=64)),
    "uint4_wo_128": lambda: _layer(s.Uint4PerGroupSpec(ch_axis=-1, group_size=128)),
    "uint4_wo_per_channel": lambda: _layer(s.Uint4PerChannelSpec(ch_axis=0, is_dynamic=False)),
    "int8": lambda: _layer(_int8(), _int8()),
    "fp8": lambda: _layer(_fp8(scale_type="float"), _fp8(scale_type="float")),
    "ptpc_fp8": lambda: _layer(s.FP8E4M3PerChannelSpec(ch_axis=0), s.FP8E4M3PerChannelSpec(ch_axis=1, is_dynamic=True)),
    "mxfp4": lambda: _both(s.OCP_MXFP4Spec),
    "mxfp4_weight_only": lambda: _layer(s.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False)),
    "mxfp6_e3m2": lambda: _both(s.OCP_MXFP6E3M2Spec),
    "mxfp6_e2m3": lambda: _both(s.OCP_MXFP6E2M3Spec),
    "mxfp4_mxfp6_e2m3": lambda: _layer(s.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), s.OCP_MXFP6E2M3Spec(ch_axis=-1)),
    "mxfp4_fp8": lambda: _layer(s.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), _fp8()),
    "amdfp4": lambda: _both(s.AmdFP4Spec, group_size=16),
    "amdfp4_g32": lambda: _both(s.AmdFP4Spec, group_size=32),
    "int4_fp8": _int4_fp8,
    "mx6": lambda: _layer(s.MX6Spec(ch_axis=-1, block_size=16), s.MX6Spec(ch_axis=-1, block_size=16)),
    "mx9": lambda: _layer(s.MX9Spec(ch_axis=-1, block_size=16), s.MX9Spec(ch_axis=-1, block_size=16)),
    "bfp16": lambda: _layer(s.BFP16Spec(ch_axis=-1), s.BFP16Spec(ch_axis=-1)),
    "nvfp4": lambda: _two_levels(_fp8, 16),
    "fp4_block16_scale_e4m3": lambda: _two_levels(_fp8, 16),
    "amdfp4_global16": lambda: _two_levels(s.FP8E5M3PerTensorSpec, 16),
    "amdfp4_global32": lambda: _two_levels(s.FP8E5M3PerTensorSpec, 32),
}
_SHARED_SCALES = ("nvfp4", "fp4_block16_scale_e4m3")
_OWN_SCHEMES: dict[str, QLayerConfig] = {}


@dataclass(frozen=True)
class _Family:
    """What Quark knows of a family of models.

    Attributes:
        exclude: Patterns of layers that stay floats.
        kv: Patterns of layers that make keys and values.
        q: Patterns of layers that make queries.
        gate_up: Layers of gated blocks that share a scale.
        alpha: Of SmoothQuant.
        loss: Of AutoSmoothQuant.
    """

    exclude: list[str]
    kv: list[str]
    q: list[str]
    gate_up: list[str]
    alpha: float
    loss: str


def _family(
    exclude: str,
    kv: str = "*k_proj *v_proj",
    q: str = "*q_proj",
    gate_up: str = "gate_proj up_proj",
    alpha: float = 1,
    loss: str = "MSE",
) -> _Family:
    return _Family(exclude.split(), kv.split(), q.split(), gate_up.split(), alpha, loss)


# Where families have the same layers.
_ATTENTION: dict[str, Any] = {"kv": "*self_attn.k_proj *self_attn.v_proj", "q": "*self_attn.q_proj"}
_DEEPSEEK: dict[str, Any] = {"kv": "*kv_b_proj", "q": "*q_a_proj *q_b_proj"}
_LATENT: dict[str, Any] = {"kv": "*kv_a_proj_with_mqa *kv_b_proj", "q": "*q_a_proj"}
_INSIDE: dict[str, Any] = {
    "kv": "*language_model.*k_proj *language_model.*v_proj",
    "q": "*language_model.*q_proj",
}
_FAMILIES = {
    "chatglm": _family("transformer.output_layer", kv="*query_key_value", q="*query_key_value"),
    "cohere": _family("lm_head", alpha=0.5),
    "dbrx": _family("lm_head *router.layer", kv="*Wqkv", q="*Wqkv", gate_up="w1 v1"),
    "deepseek": _family("lm_head *.gate"),
    "deepseek_v2": _family("lm_head *self_attn* *mlp.gate", **_DEEPSEEK, alpha=0.8, loss="MAE"),
    "deepseek_v3": _family("lm_head *self_attn* *mlp.gate", **_DEEPSEEK, alpha=0.8, loss="MAE"),
    "deepseek_v32": _family("lm_head *mlp.gate model.layers.61.* *self_attn*", **_DEEPSEEK),
    "deepseek_v4": _family("*attn* embed head *ffn.gate* hc_* mtp.*", kv="*wkv", q="*wq_a *wq_b"),
    "deepseek_vl_v2": _family("lm_head model.sam_model* model.vision_model* model.projector*"),
    "gemma2": _family("lm_head"),
    "gemma3": _family("*vision_tower* *multi_modal_projector* *lm_head", **_INSIDE),
    "gemma3_text": _family("*lm_head"),
    "gemma4": _family(
        "*vision_tower* *embed_vision* *audio_tower* *embed_audio* *multi_modal_projector* *lm_head *router.proj",
        **_INSIDE,
    ),
    "gemma4_unified": _family("*embed_vision* *vision_embedder* *embed_audio* *lm_head", **_INSIDE),
    "glm4_moe": _family("lm_head *mlp.gate *self_attn* *shared_experts.* *mlp.down_proj *mlp.gate_proj *mlp.up_proj"),
    "glm4_moe_lite": _family("lm_head *self_attn* *mlp.gate", **_LATENT),
    "glm_moe_dsa": _family("*self_attn* *mlp.gate *lm_head *mlp.gate_proj *mlp.up_proj *mlp.down_proj", **_LATENT),
    "glm5_next": _family(
        "*self_attn* *mlp.gate *mlp.gate_proj *mlp.up_proj *mlp.down_proj *visual* *lm_head* "
        "model.language_model.layers.45.*",
        kv="*self_attn.kv_b_proj",
        q="*self_attn.q_b_proj",
    ),
    "gptj": _family("lm_head"),
    "gpt_oss": _family("lm_head *router*"),
    "granitemoehybrid": _family("lm_head *router*", alpha=0.8, loss="MAE"),
    "grok-1": _family("lm_head *.gate", gate_up="linear linear_v"),
    "hunyuan_v1_dense": _family("lm_head", loss="MAE"),
    "instella": _family("lm_head"),
    "kimi_k2": _family(
        "*self_attn* *mlp.gate *lm_head *mlp.gate_proj *mlp.up_proj *mlp.down_proj *shared_experts*",
        **_LATENT,
    ),
    "kimi_k25": _family(
        "*self_attn* *mlp.gate *lm_head *mlp.gate_proj *mlp.up_proj *mlp.down_proj *shared_experts* "
        "*mm_projector* *vision_tower*",
        **_LATENT,
    ),
    "kimi_k3": _family(
        "*block_sparse_moe.gate* *block_sparse_moe.routed_expert_down_proj* "
        "*block_sparse_moe.routed_expert_up_proj* *lm_head* *vision_tower* *mm_projector* "
        "*self_attention_res_proj* *mlp_res_proj* *output_attn_res_proj* *self_attn.*_conv1d*",
        kv="*self_attn.k_proj *self_attn.v_proj *self_attn.kv_a_proj_with_mqa",
        q="*self_attn.q_proj *self_attn.q_a_proj *self_attn.q_b_proj",
    ),
    "lfm2": _family("lm_head *conv.in_proj *conv.out_proj", **_ATTENTION),
    "llama": _family("lm_head", loss="MAE"),
    "llama4": _family(
        "multi_modal_projector* *feed_forward.router vision_model* *lm_head",
        kv="*language_model.*.k_proj *language_model.*.v_proj",
        q="*language_model.*.q_proj",
        alpha=0.8,
        loss="MAE",
    ),
    "minimax_m2": _family("lm_head *block_sparse_moe.gate* *self_attn*", gate_up="w1 w3"),
    "minimax_m3_vl": _family(
        "*lm_head *vision_tower* *multi_modal_projector* *patch_merge_mlp* *block_sparse_moe.gate *self_attn*",
        **_INSIDE,
    ),
    "mistral": _family("lm_head"),
    "mixtral": _family("lm_head *.gate", alpha=0.8, loss="MAE"),
    "mllama": _family(
        "*lm_head *patch_embedding multi_modal_projector",
        kv="*language_model.*k_proj *language_model.*v_proj",
        q="*self_attn.q_proj",
    ),
    "muse_glimmer": _family("*vision_tower* *vision_adapter* *vision_projection* lm_head", **_INSIDE),
    "olmo": _family("lm_head"),
    "opt": _family("lm_head"),
    "phi": _family("lm_head"),
    "phi3": _family("lm_head", kv="*qkv_proj", q="*qkv_proj"),
    "qwen": _family("lm_head", kv="*c_attn", q="*c_attn"),
    "qwen2": _family("lm_head"),
    "qwen2_moe": _family("lm_head *.gate *.shared_expert_gate"),
    "qwen3": _family("lm_head"),
    "qwen3_moe": _family("lm_head *.gate"),
    "qwen3_next": _family(
        "lm_head mtp.fc *linear_attn.in_proj_ba *linear_attn.in_proj_qkvz *mlp.gate *mlp.shared_expert_gate "
        "*self_attn.k_proj *self_attn.q_proj *self_attn.v_proj",
        kv="*qkvz",
        q="*qkvz",
    ),
    "qwen3_vl_moe": _family("lm_head *mlp.gate *.visual.*"),
    "qwen3_5_moe": _family(
        "lm_head model.visual.* mtp.* *mlp.gate *shared_expert_gate* *.linear_attn.* *.self_attn.* *.shared_expert.*",
        alpha=0.5,
        loss="MAE",
    ),
    "qwen3_5": _family("lm_head model.visual.* *mtp*", **_ATTENTION, alpha=0.5),
    "qwen4_exp": _family(
        "lm_head model.visual.* mtp.* *mlp.gate *shared_expert_gate* *.linear_attn.* *.self_attn.* "
        "*hyper_connection* *.ple.*",
        **_ATTENTION,
    ),
    "qwen4_exp_text": _family(
        "lm_head model.visual.* mtp.* *mlp.gate *shared_expert_gate* *.linear_attn.* *.self_attn.* "
        "*hyper_connection* *.ple.*",
        **_ATTENTION,
    ),
}
_ATTENTION_NAMES = ("self_attn", "self_attention", "attn", "attention")


class LLMTemplate:
    """A family of language models, and the schemes for it.

    Args:
        model_type: The name of the family, as config.json has it.
        kv_layers_name: Patterns of layers that make keys and values.
        q_layer_name: Patterns of layers that make queries.
        gate_up_layers_name: Layers of gated blocks that share a scale in nvfp4.
        exclude_layers_name: Patterns of layers that stay floats.
        algorithm_configs: Settings of algorithms by their names.
        f2f_weight_converters: Not used: models are quantized in memory.
        legacy_algorithm_parameters: The same as `awq_config` and so on.

    Raises:
        UsageError: An unknown algorithm.
    """

    _templates: dict[str, LLMTemplate] = {}

    def __init__(
        self,
        model_type: str,
        kv_layers_name: list[str] | None = None,
        q_layer_name: str | list[str] | None = None,
        gate_up_layers_name: list[str] | None = None,
        exclude_layers_name: list[str] | None = None,
        algorithm_configs: dict[str, Any] | None = None,
        f2f_weight_converters: Any = None,
        **legacy_algorithm_parameters: Any,
    ) -> None:
        self.model_type = model_type
        self.kv_layers_name = kv_layers_name
        self.q_layer_name = [q_layer_name] if isinstance(q_layer_name, str) else q_layer_name
        self.gate_up_layers_name = gate_up_layers_name or ["gate_proj", "up_proj"]
        self.exclude_layers_name = exclude_layers_name or []
        given = {name.removesuffix("_config"): entry for name, entry in legacy_algorithm_parameters.items()}
        self.algo_config = {name.lower(): entry for name, entry in {**given, **(algorithm_configs or {})}.items()}
        for name in self.algo_config:
            algorithm_named(name)

    @classmethod
    def list_available(cls) -> list[str]:
        """The families that have a template."""
        return list(dict.fromkeys((*_FAMILIES, *cls._templates)))

    @classmethod
    def register_template(cls, template: LLMTemplate) -> None:
        """Adds a template, in place of another one of its family."""
        cls._templates[template.model_type] = template

    @classmethod
    def get(cls, model_type: str) -> LLMTemplate:
        """The template of a family.

        Raises:
            UsageError: There is none.
        """
        if model_type in cls._templates:
            return cls._templates[model_type]
        if model_type not in _FAMILIES:
            raise usage_error(
                f"there is no template for {model_type!r}",
                f"there are {', '.join(cls.list_available())}; for others make one: LLMTemplate({model_type!r},"
                " exclude_layers_name=['lm_head'])",
            )
        family = _FAMILIES[model_type]
        algorithms = {
            "smoothquant": SmoothQuantConfig(alpha=family.alpha),
            "autosmoothquant": AutoSmoothQuantConfig(compute_scale_loss=family.loss),
        }
        return cls(model_type, family.kv, family.q, family.gate_up, family.exclude, algorithms)

    @classmethod
    def register_scheme(cls, scheme_name: str, config: QLayerConfig) -> None:
        """Adds a scheme of your own.

        Raises:
            UsageError: There is one of this name.
        """
        if scheme_name in cls.get_supported_schemes():
            raise usage_error(f"there is a scheme {scheme_name!r}", "choose another name")
        _OWN_SCHEMES[scheme_name] = config

    @classmethod
    def unregister_scheme(cls, scheme_name: str) -> None:
        """Removes a scheme of your own.

        Raises:
            UsageError: There is none of this name.
        """
        if scheme_name not in _OWN_SCHEMES:
            raise usage_error(f"there is no scheme {scheme_name!r} of your own", "give one that was registered")
        del _OWN_SCHEMES[scheme_name]

    @classmethod
    def get_supported_schemes(cls) -> list[str]:
        """The names of schemes."""
        return [*_SCHEMES, *_OWN_SCHEMES]

    def get_config(
        self,
        scheme: str,
        algorithm: str | list[str] | None = None,
        kv_cache_scheme: str | None = None,
        min_kv_scale: float = 0.0,
        attention_scheme: str | None = None,
        layer_config: dict[str, str] | None = None,
        layer_type_config: dict[Any, str] | None = None,
        exclude_layers: list[str] | None = None,
        algo_configs: dict[str, Any] | None = None,
        shared_scale_groups: list[list[str]] | None = None,
    ) -> QConfig:
        """The configuration of a scheme.

        Args:
            scheme: The scheme of linear layers.
            algorithm: Names of algorithms. Their settings are those of `algo_configs` or of the template; layers and
                pairs that these do not name are found by running the model.
            kv_cache_scheme: `fp8` quantizes keys and values, before the rotary embedding.
            min_kv_scale: The least scale of these in exports.
            attention_scheme: `fp8`, which ModelQuantizer refuses.
            layer_config: Schemes for patterns of names.
            layer_type_config: Schemes for types.
            exclude_layers: Patterns of layers that stay floats, in place of the template's.
            algo_configs: Settings of algorithms by their names.
            shared_scale_groups: Names of layers whose weights share a scale of the tensor (nvfp4).

        Raises:
            UsageError: An unknown scheme or algorithm.
            UnsupportedError: An algorithm that does not run on models in place.
        """
        is_shared = scheme in _SHARED_SCALES
        default_groups = [["q_proj", "k_proj", "v_proj"], list(self.gate_up_layers_name)] if is_shared else []
        config = QConfig(
            _scheme(scheme),
            exclude=list(self.exclude_layers_name if exclude_layers is None else exclude_layers),
            algo_config=self._algorithms(algorithm, algo_configs or {}),
            layer_quant_config={name: _scheme(text) for name, text in (layer_config or {}).items()},
            layer_type_quant_config={kind: _scheme(text) for kind, text in (layer_type_config or {}).items()},
            kv_cache_group=self.kv_layers_name and list(self.kv_layers_name),
            min_kv_scale=min_kv_scale,
            shared_scale_groups=default_groups if shared_scale_groups is None else shared_scale_groups,
            sync_moe_expert_input_amax=is_shared,
        )
        for name, value in (("kv_cache_scheme", kv_cache_scheme), ("attention_scheme", attention_scheme)):
            if value not in (None, "fp8"):
                raise usage_error(f"{name} {value!r} is unknown", "use 'fp8'")
        if kv_cache_scheme:
            for name in self.kv_layers_name or ():
                layer = _with_fp8_outputs(config, name)
                config.kv_cache_quant_config[name] = layer
                if layer.weight is not None:
                    config.layer_quant_config[name] = copy.copy(layer)
        if attention_scheme:
            config.softmax_quant_spec = _fp8().to_quantization_spec()
            for name in self.q_layer_name or ():
                layer = _with_fp8_outputs(config, name)
                if layer.weight is not None:
                    config.layer_quant_config[name] = layer
        return config

    def _algorithms(self, names: str | list[str] | None, given: dict[str, Any]) -> list[Any] | None:
        if not names:
            return None
        settings = {**self.algo_config, **{name.lower(): entry for name, entry in given.items()}}
        names = [name.lower() for name in ([names] if isinstance(names, str) else names)]
        return [settings.get(name) or algorithm_named(name)() for name in names]


def _scheme(name: str) -> QLayerConfig:
    if name in _OWN_SCHEMES:
        return copy.deepcopy(_OWN_SCHEMES[name])
    if name not in _SCHEMES:
        known = ", ".join(LLMTemplate.get_supported_schemes())
        raise usage_error(
            f"there is no scheme {name!r}", f"there are {known}; LLMTemplate.register_scheme adds one of your own"
        )
    return _SCHEMES[name]()


def _with_fp8_outputs(config: QConfig, pattern: str) -> QLayerConfig:
    """The configuration of layers of attention, with outputs in fp8; without a weight where they are excluded."""
    found = layer_of(config, pattern, lambda kind: getattr(kind, "__name__", kind) == "Linear")
    if found is config.global_quant_config:
        leaf = pattern.rsplit(".", 1)[-1].strip("*")
        of_attention = (
            layer
            for name, layer in config.layer_quant_config.items()
            if name.endswith(leaf) or any(part in name for part in _ATTENTION_NAMES)
        )
        found = next(of_attention, found)
    weight, inputs = (None, None) if found is None else (found.weight, found.input_tensors)
    return QLayerConfig(weight=weight, input_tensors=inputs, output_tensors=_fp8().to_quantization_spec())
