"""Templates of AMD Quark: the configurations that they make, and what these give, against amd-quark's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

import kvant  # noqa: E402
from kvant.compat.quark import torch as compat  # noqa: E402
from kvant.compat.quark.torch import LLMTemplate, ModelQuantizer  # noqa: E402
from kvant.compat.quark.torch.quantization.config import config as configs  # noqa: E402

# Fields of configurations that their dicts do not have.
MORE = ("kv_cache_group", "min_kv_scale", "shared_scale_groups", "sync_moe_expert_input_amax", "kv_cache_post_rope")
# Scales for each token, which Quark finds for each position, and scales of blocks that Quark corrupts.
DIFFERENT = {"ptpc_fp8", "amdfp4_global16", "amdfp4_global32"}


@pytest.fixture
def quark() -> Any:
    """amd-quark's quark.torch."""
    return pytest.importorskip("quark.torch")


def llama(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, **sizes)).eval()


def tokens(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"input_ids": torch.randint(0, 96, (2, 30))}


def outputs(module: Any, model: Any, config: Any) -> Any:
    """A model that Quark or Kvant has quantized, and its outputs."""
    quantizer = module.ModelQuantizer(config)
    model = quantizer.freeze(quantizer.quantize_model(model, [tokens(7), tokens(8)]))
    with torch.no_grad():
        return model, model(**tokens(9)).logits


def compare(ours: Any, theirs: Any) -> None:
    """Configurations have the same dicts and further fields; of algorithms the names count."""
    made, expected = ours.to_dict(), theirs.to_dict()
    names = [[entry["name"] for entry in given.pop("algo_config") or ()] for given in (made, expected)]
    assert made == expected and names[0] == names[1]
    for name in MORE:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_schemes_are_those_of_quark(quark: Any) -> None:
    assert LLMTemplate.get_supported_schemes() == quark.LLMTemplate.get_supported_schemes()
    for scheme in LLMTemplate.get_supported_schemes():
        compare(LLMTemplate.get("llama").get_config(scheme), quark.LLMTemplate.get("llama").get_config(scheme))


def test_families_are_those_of_quark(quark: Any) -> None:
    assert LLMTemplate.list_available() == quark.LLMTemplate.list_available()
    options = {"kv_cache_scheme": "fp8", "attention_scheme": "fp8", "min_kv_scale": 0.5}
    for family in LLMTemplate.list_available():
        ours, theirs = (module.LLMTemplate.get(family) for module in (compat, quark))
        compare(ours.get_config("nvfp4", **options), theirs.get_config("nvfp4", **options))
        for name in ("smoothquant", "autosmoothquant"):
            expected, made = theirs.algo_config.get(name), ours.algo_config[name]
            if expected is not None:
                for option in ("alpha", "compute_scale_loss"):
                    assert getattr(made, option, None) == getattr(expected, option, None), (family, option)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "AWQ"},
        {"algorithm": ["smoothquant", "gptq"], "exclude_layers": []},
        {"layer_config": {"*down_proj": "fp8", "*k_proj": "mxfp4"}, "kv_cache_scheme": "fp8"},
        {"layer_config": {"*self_attn*": "fp8"}, "kv_cache_scheme": "fp8", "attention_scheme": "fp8"},
        {"layer_type_config": {nn.Linear: "int8", nn.Embedding: "fp8"}},
        {"exclude_layers": ["*k_proj", "lm_head"], "kv_cache_scheme": "fp8"},
        {"shared_scale_groups": [["q_proj", "k_proj"]]},
    ],
)
def test_options_of_templates_are_those_of_quark(options: dict[str, Any], quark: Any) -> None:
    ours, theirs = (module.LLMTemplate.get("llama").get_config("int4_wo_32", **options) for module in (compat, quark))
    compare(ours, theirs)
    if "algorithm" not in options:
        known = configs.QConfig.from_dict(theirs.to_dict())
        assert known.to_dict() == theirs.to_dict()


def test_own_families_and_schemes(quark: Any) -> None:
    made = []
    for module in (compat, quark):
        config = configs if module is compat else pytest.importorskip("quark.torch.quantization.config.config")
        weight = config.Int4PerGroupSpec(ch_axis=-1, group_size=16).to_quantization_spec()
        template = module.LLMTemplate(
            "own",
            kv_layers_name=["*key", "*value"],
            q_layer_name="*query",
            exclude_layers_name=["head"],
            algorithm_configs={"awq": config.AWQConfig()},
        )
        module.LLMTemplate.register_template(template)
        module.LLMTemplate.register_scheme("own", config=config.QLayerConfig(weight=weight))
        found = module.LLMTemplate.get("own")
        assert "own" in module.LLMTemplate.list_available() and "own" in module.LLMTemplate.get_supported_schemes()
        made.append(found.get_config("own", algorithm="awq", kv_cache_scheme="fp8"))
        assert config.QConfig.with_llm_template(found, "own").to_dict() == found.get_config("own").to_dict()
        for wrong in ("own", "int8"):
            with pytest.raises(ValueError):
                module.LLMTemplate.register_scheme(wrong, config.QLayerConfig(weight=weight))
        module.LLMTemplate.unregister_scheme("own")
        for wrong in ("own", "int8"):
            with pytest.raises(ValueError):
                module.LLMTemplate.unregister_scheme(wrong)
        for call in (
            lambda found=found: found.get_config("own"),
            lambda found=found: found.get_config("int8", algorithm="other"),
            lambda found=found: found.get_config("int8", kv_cache_scheme="int8"),
            lambda module=module: module.LLMTemplate.get("others"),
        ):
            with pytest.raises(ValueError):
                call()
    compare(*made)
    LLMTemplate._templates.pop("own")


@pytest.mark.parametrize("scheme", LLMTemplate.get_supported_schemes())
def test_schemes_give_the_outputs_of_quark(scheme: str, quark: Any) -> None:
    made = {module: module.LLMTemplate.get("llama").get_config(scheme) for module in (compat, quark)}
    (ours, values), (_, expected) = (outputs(module, llama(), config) for module, config in made.items())
    assert ours.quark_quantized and ours.quant_config is made[compat]
    if scheme in DIFFERENT:
        assert not torch.equal(values, expected)
    else:
        assert torch.equal(values, expected)


def test_weights_with_a_shared_scale_are_exported(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ours, expected = outputs(compat, llama(), LLMTemplate.get("llama").get_config("nvfp4"))
    compat.export_safetensors(ours, tmp_path / "out")
    stored = load_file(tmp_path / "out/model.safetensors")
    for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        place = "model.layers.1." + ("self_attn" if names[0] == "q_proj" else "mlp")
        scales = {float(stored[f"{place}.{name}.weight_scale_2"]) for name in names}
        assert len(scales) == 1
        assert all(
            stored[f"{place}.{name}.weight"].shape[0] == 128 * (1 + ("up" in name or "gate" in name)) for name in names
        )
    with torch.no_grad():
        assert torch.equal(
            compat.import_model_from_safetensors(llama(2), tmp_path / "out")(**tokens(9)).logits, expected
        )
    # Algorithms choose codes under scales of their own.
    config = LLMTemplate.get("llama").get_config("nvfp4", algorithm="gptq")
    with pytest.warns(kvant.KvantWarning, match="have a scale of the tensor each"):
        ModelQuantizer(config).quantize_model(llama(), [tokens(7)])


class Expert(nn.Module):
    """A layer of an expert."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        return self.up_proj(x)


class Mixture(nn.Module):
    """Two experts, of which each takes half of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        experts = nn.ModuleDict({"experts": nn.ModuleList([Expert(), Expert()])})
        self.layer = nn.ModuleDict({"mlp": experts})

    def forward(self, input_ids: Any) -> Any:
        x = torch.nn.functional.one_hot(input_ids % 32, 32).float() * (1 + input_ids[..., None])
        half, experts = x.shape[1] // 2, self.layer["mlp"]["experts"]
        logits = torch.cat([experts[0](x[:, :half]), experts[1](3 * x[:, half:])], dim=1)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def test_inputs_of_experts_share_a_scale(quark: Any) -> None:
    made = {module: module.LLMTemplate.get("llama").get_config("nvfp4") for module in (compat, quark)}
    (ours, values), (_, expected) = (outputs(module, Mixture(), config) for module, config in made.items())
    scales = [expert.up_proj.input_quantizer.scale for expert in ours.layer["mlp"]["experts"]]
    assert torch.equal(*scales) and torch.equal(values, expected)
    compared = configs.QConfig(made[compat].global_quant_config)
    ours, _ = outputs(compat, Mixture(), compared)
    assert not torch.equal(*(expert.up_proj.input_quantizer.scale for expert in ours.layer["mlp"]["experts"]))


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4_wo_32"])
def test_quantized_keys_and_values_are_those_of_quark(scheme: str, quark: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    options = {"kv_cache_scheme": "fp8", "min_kv_scale": 0.001}
    made = {}
    for name, module in (("ours", compat), ("theirs", quark)):
        config = module.LLMTemplate.get("llama").get_config(scheme, **options)
        model, values = outputs(module, llama(), config)
        module.export_safetensors(model, str(tmp_path / name))
        stored = load_file(tmp_path / name / "model.safetensors")
        made[name] = values, stored, json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
    assert torch.equal(made["ours"][0], made["theirs"][0])
    for tensor, expected in made["theirs"][1].items():
        assert torch.equal(made["ours"][1][tensor].float(), expected.float()), tensor
    assert made["ours"][1].keys() == made["theirs"][1].keys()
    ours, theirs = made["ours"][2], made["theirs"][2]
    for key in ("kv_cache_quant_config", "export"):
        assert ours[key] == theirs[key]
