"""Scripts for AMD Quark with only their imports changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import kvant  # noqa: E402
import kvant.torch as kt  # noqa: E402


def test_first_example_of_the_documentation(llama: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    # An OPT of random weights, with the tokenizer of another model.
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=2048,
        hidden_size=128,
        word_embed_proj_dim=128,
        ffn_dim=256,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    config._attn_implementation = "eager"
    model = transformers.OPTForCausalLM(config).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    before = model.model.decoder.layers[0].fc1.weight.detach().clone()

    from torch.utils.data import DataLoader

    text = "Hello, how are you?"
    tokenized_outputs = tokenizer(text, return_tensors="pt")
    calib_dataloader = DataLoader(tokenized_outputs["input_ids"])

    from kvant.compat.quark.torch.quantization.config.config import (
        Config,
        QuantizationConfig,
        QuantizationSpec,
    )
    from kvant.compat.quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from kvant.compat.quark.torch.quantization.observer.observer import PerTensorMinMaxObserver

    DEFAULT_INT8_PER_TENSOR_SYM_SPEC = QuantizationSpec(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=False,
    )
    DEFAULT_W_INT8_PER_TENSOR_CONFIG = QuantizationConfig(weight=DEFAULT_INT8_PER_TENSOR_SYM_SPEC)
    quant_config = Config(global_quant_config=DEFAULT_W_INT8_PER_TENSOR_CONFIG)

    from kvant.compat.quark.torch import ModelQuantizer

    quantizer = ModelQuantizer(quant_config)
    quant_model = quantizer.quantize_model(model, calib_dataloader)
    freezed_model = quantizer.freeze(quant_model)

    from kvant.compat.quark.torch.export.api import export_onnx

    model.config.use_cache = False
    input_args = next(iter(calib_dataloader))
    path = export_onnx(freezed_model, str(tmp_path), input_args)

    weight = freezed_model.model.decoder.layers[0].fc1.weight
    assert torch.equal(weight, kvant.fake_quantize(before, "int8:tensor"))
    assert path.exists() and path.stat().st_size > 1_000_000
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    made = session.run(None, {session.get_inputs()[0].name: input_args.numpy()})[0]
    with torch.no_grad():
        expected = freezed_model(input_args).logits
    assert abs(torch.from_numpy(made) - expected).max() < 1e-3 * abs(expected).max()


def configs() -> Any:
    from kvant.compat.quark.torch.quantization.config import config, type

    return config, type


def test_names_types_and_exclusions_are_resolved_as_in_quark() -> None:
    config, type = configs()
    from kvant.compat.quark.torch import ModelQuantizer

    def weight(dtype: Any, **more: Any) -> Any:
        return config.QLayerConfig(weight=config.QTensorConfig(dtype=dtype, symmetric=True, **more))

    per_channel = {"qscheme": type.QSchemeType.per_channel, "ch_axis": 0}
    model = nn.ModuleDict(
        {
            "a": nn.Linear(8, 8),
            "b": nn.Linear(8, 8),
            "head": nn.Linear(8, 8),
            "conv": nn.Conv2d(8, 4, 1),
            "embed": nn.Embedding(5, 8),
        }
    )
    chosen = config.QConfig(
        global_quant_config=weight(type.Dtype.int8, **per_channel),
        layer_type_quant_config={nn.Conv2d: weight(type.Dtype.int8)},
        layer_quant_config={"b": weight(type.Dtype.int4, qscheme=type.QSchemeType.per_group, ch_axis=-1, group_size=4)},
        exclude=["head"],
    )
    ModelQuantizer(chosen).quantize_model(model)
    schemes = {name: module.scheme_text for name, module in kt.quantized_modules(model)}
    assert schemes == {"a": "int8:channel", "b": "int4:g4", "conv": "int8:tensor"}


def test_static_activations_export_to_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    config, type = configs()
    from kvant.compat.quark.torch import ModelQuantizer, export_onnx

    torch.manual_seed(0)
    spec = config.QTensorConfig(
        dtype=type.Dtype.int8, qscheme=type.QSchemeType.per_tensor, symmetric=True, is_dynamic=False
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
    quantizer = ModelQuantizer(config.QConfig(config.QLayerConfig(weight=spec, input_tensors=spec)))
    x = torch.randn(2, 3, 8, 8)
    model = quantizer.freeze(quantizer.quantize_model(model, [x]))
    path = export_onnx(model, str(tmp_path), (x,))
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert operators.count("QuantizeLinear") == 2
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    made = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        assert (made - model(x)).abs().max() < 0.02


def test_what_is_not_done_is_refused_with_the_reason() -> None:
    config, type = configs()
    from kvant.compat.quark.torch import LLMTemplate, ModelQuantizer, export_gguf
    from kvant.compat.quark.torch.quantization.observer import PerTensorHistogramObserver

    plain = config.QTensorConfig(dtype=type.Dtype.int8, symmetric=True)
    model = nn.Sequential(nn.Linear(8, 8))
    layer = config.QLayerConfig
    for given in (
        config.QConfig(layer(weight=plain, bias=plain)),
        config.QConfig(layer(input_tensors=plain)),
        config.QConfig(layer(weight=plain), algo_config=["awq"]),
        config.QConfig(layer(weight=plain), quant_mode=type.QuantizationMode.fx_graph_mode),
        config.QConfig(layer(weight=plain), kv_cache_quant_config={"*k_proj": layer(weight=plain)}),
        config.QConfig(layer(weight=[plain, plain])),
        config.QConfig(
            layer(weight=config.QTensorConfig(dtype=type.Dtype.int8, observer_cls=PerTensorHistogramObserver))
        ),
    ):
        with pytest.raises(kvant.UnsupportedError) as caught:
            ModelQuantizer(given).quantize_model(model)
        assert caught.value.remedy
    with pytest.raises(kvant.UnsupportedError, match="kv_cache_scheme"):
        LLMTemplate.get("llama").get_config("fp8", kv_cache_scheme="fp8")
    with pytest.raises(kvant.UnsupportedError, match="GGUF"):
        export_gguf(model, "out")
