"""Architectures whose modules transformers names otherwise than their checkpoints do: compressed-tensors' `targets` and `ignore` reach them."""

import json

import pytest
import torch
import transformers

import checkpoint
import forward_models
from conftest import quantize_anyway
from models import fill
from test_vllm import OF_KIND

TEXT = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, bos_token_id=0, eos_token_id=0, pad_token_id=0)  # fmt: skip
NEMOTRON = dict(TEXT, head_dim=16, layers_block_type=["mamba", "attention", "moe"], ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=16,
                n_groups=2, n_routed_experts=4, moe_intermediate_size=32, moe_shared_expert_intermediate_size=32, use_mamba_kernels=False)  # fmt: skip
MLLAMA_VISION = dict(hidden_size=64, attention_heads=4, num_hidden_layers=1, num_global_layers=1, intermediate_size=128, vision_output_dim=128,
                     image_size=28, patch_size=14, max_num_tiles=1, intermediate_layers_indices=[0], supported_aspect_ratios=[[1, 1]])  # fmt: skip
DETR = dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
            decoder_ffn_dim=128, num_queries=8, use_timm_backbone=False, use_pretrained_backbone=False,
            backbone_config=dict(model_type="resnet", embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1],
                                 out_features=["stage4"]))  # fmt: skip
SWIN = dict(image_size=32, patch_size=4, embed_dim=64, depths=[1, 1], num_heads=[2, 4], window_size=4)

# architecture -> (class, configuration, module on disk, the same after loading)
RENAMED = {
    "nemotron_h": ("NemotronHForCausalLM", NEMOTRON, "backbone.layers.1.mixer.q_proj", "model.layers.1.mixer.q_proj"),
    "mllama": ("MllamaForConditionalGeneration",
               dict(text_config=dict(TEXT, cross_attention_layers=[1], rope_parameters=dict(rope_type="default", rope_theta=1e4)),
                    vision_config=MLLAMA_VISION, image_token_index=255),
               "language_model.model.layers.0.self_attn.q_proj", "model.language_model.layers.0.self_attn.q_proj"),
    "detr": ("DetrForObjectDetection", DETR, "model.decoder.layers.0.fc1", "model.decoder.layers.0.mlp.fc1"),
    "swin": ("SwinForImageClassification", SWIN, "swin.encoder.layers.0.blocks.0.attention.self.query",
             "swin.encoder.layers.0.blocks.0.attention.q_proj"),
    "lfm3": ("Lfm3ForCausalLM", TEXT, None, None),
    "hy_v4": ("HYV4ForCausalLM", dict(TEXT, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), None, None),
}  # fmt: skip
# What int4 in groups of 32 and fp8 take from normal weights, in norms; random weights or codes without scales are above 1.
ERROR = {"int4:g32": 0.15, "FP8_DYNAMIC": 0.04}


@pytest.fixture(scope="module")
def source(module_path):
    made = {}

    def make(name):
        if name not in made:
            kind, arguments, *_ = RENAMED[name]
            model_class = getattr(transformers, kind, None)
            if model_class is None:
                pytest.skip(f"this version of transformers has no {kind}")
            model = model_class(model_class.config_class(**arguments)).to(torch.bfloat16)
            fill(model, seed=len(name))
            out = module_path(name)
            model.save_pretrained(out)
            made[name] = (model_class, out, {key: value.float() for key, value in model.state_dict().items()})
        return made[name]

    return make


def quantize(kvant, source, scheme, out):
    done = kvant("quantize", source, "--scheme", scheme, "--format", "compressed-tensors", "-o", out)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", ERROR)
@pytest.mark.parametrize("name", RENAMED)
def test_every_layer_has_its_weights_after_loading(name, scheme, kvant, source, tmp_path):
    model_class, directory, weights = source(name)
    quantize(kvant, directory, scheme, tmp_path / "out")
    config = transformers.CompressedTensorsConfig(dequantize=True)
    model, report = model_class.from_pretrained(tmp_path / "out", dtype="auto", quantization_config=config, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    loaded = model.state_dict()
    assert set(weights) <= set(loaded)
    for key, wanted in weights.items():
        error = (loaded[key].float() - wanted).norm() / wanted.norm().clamp(min=1e-6)
        assert error < ERROR[scheme], (key, float(error))


@pytest.mark.parametrize("name", [name for name, (*_, on_disk, _) in RENAMED.items() if on_disk])
def test_loaded_module_names_match_those_verify_expects(name, kvant, source, tmp_path):
    model_class, directory, _ = source(name)
    on_disk, loaded = RENAMED[name][2:]
    model = model_class(model_class.config_class.from_pretrained(directory))
    assert loaded in dict(model.named_modules()) and on_disk not in dict(model.named_modules())
    quantize(kvant, directory, "int4:g32", tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    # As other tools write it: by the names on disk.
    quantized = sorted({key.rsplit(".", 1)[0] for key in checkpoint.tensors(tmp_path / "out") if key.endswith(".weight_packed")})
    assert on_disk in quantized
    for targets, code in ((["Linear"], 0), (quantized, 1)):
        config["quantization_config"]["config_groups"]["group_0"]["targets"] = targets
        path.write_text(json.dumps(config))
        done = kvant("verify", tmp_path / "out")
        assert done.returncode == code, done.stdout
        assert (f"`{loaded}` once transformers has loaded it" in done.stdout + done.stderr) == bool(code), done.stdout


T5 = dict(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_decoder_layers=1, num_heads=4, decoder_start_token_id=0)
BERT = dict(vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, max_position_embeddings=64)


@pytest.mark.parametrize("name,arguments,floats", [("T5ForConditionalGeneration", T5, ["-x", "*.wo"]), ("BertForMaskedLM", BERT, [])])
def test_encoders_in_quark_layout_match_their_weights(name, arguments, floats, kvant, tmp_path):
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**arguments)).to(torch.bfloat16)
    fill(model, seed=3)
    model.save_pretrained(tmp_path / "source")
    tokens, logits = torch.arange(1, 17)[None], []
    inputs = dict(input_ids=tokens, decoder_input_ids=tokens) if "T5" in name else dict(input_ids=tokens)
    for layout, options in (("quark", []), ("fake", floats)):
        out = tmp_path / layout
        quantize_anyway(kvant, tmp_path / "source", out, "--scheme", "int4:g32", "--format", layout, *options)
        loaded = model_class.from_pretrained(out, dtype="auto").eval()
        with torch.no_grad():
            logits.append(loaded(**inputs).logits.float().flatten())
    assert torch.nn.functional.cosine_similarity(*logits, dim=0) > 0.999


# One of each family, and of these both schemes: what splits or merges experts, and what reads weights otherwise than a linear layer does.
BOTH = {"falcon", "gemma4_moe", "gpt_oss", "longcat", "mamba2", "mistral4", "mixtral", "qwen3_moe_whole", "qwen3_vl_moe"} & set(forward_models.MODELS)
SUPPORT = [(name, "int4:g32") for name in sorted({*OF_KIND.values(), *BOTH})] + [(name, "FP8_DYNAMIC") for name in sorted(BOTH)]


@pytest.mark.parametrize("name,scheme", SUPPORT)
def test_plan_and_verify_list_transformers_where_it_loads(name, scheme, kvant, tmp_path):
    source, out = forward_models.save(name, tmp_path / "source"), tmp_path / "out"
    options = ["--scheme", scheme, "--format", "compressed-tensors"]
    if kvant("quantize", source, *options, "--no-verify", "-o", out).returncode:
        pytest.skip("Kvant does not write it")
    loaders = json.loads(kvant("plan", source, *options, "--json").stdout).get("loaders", [])
    planned = any(loader.startswith("transformers") for loader in loaders)
    verdicts = json.loads(kvant("verify", out, "--json").stdout)["loaders"]
    verified = next(verdict["loads"] for verdict in verdicts if verdict["id"] == "transformers") == "yes"
    try:
        config = transformers.AutoConfig.from_pretrained(out)
        model, report = forward_models.model_class(config).from_pretrained(out, dtype="auto", output_loading_info=True)
        loads = not report["missing_keys"] and not report["unexpected_keys"]
        with torch.no_grad():
            model.eval()(torch.arange(1, 9)[None])
    except (AttributeError, RuntimeError):
        loads = False
    assert planned == verified == loads
