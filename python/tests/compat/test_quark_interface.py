"""Scripts for AMD Quark with only their imports changed."""

from __future__ import annotations

import copy
import json
import pickle
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
    from kvant.compat.quark._types import OBSERVERS
    from kvant.compat.quark.torch import LLMTemplate, ModelQuantizer, export_gguf
    from kvant.compat.quark.torch.quantization.observer import PerTensorHistogramObserver, PerTensorMinMaxObserver

    def spec(**more: Any) -> Any:
        return config.QTensorConfig(**{"dtype": type.Dtype.int8, "symmetric": True, **more})

    class OwnObserver(PerTensorMinMaxObserver):
        """One that computes otherwise."""

    plain, layer = spec(), config.QLayerConfig
    model = nn.Sequential(nn.Linear(8, 8))
    power = OBSERVERS["PerTensorPowOf2MinMaxObserver"]
    for given in (
        config.QConfig(layer(weight=plain, bias=[plain, plain])),
        config.QConfig(layer(input_tensors=plain)),
        config.QConfig(layer(weight=plain), algo_config=["awq"]),
        config.QConfig(layer(weight=plain), quant_mode=type.QuantizationMode.fx_graph_mode),
        config.QConfig(layer(weight=plain), quant_flow=type.QuantFlow.file2file),
        config.QConfig(layer(weight=plain), softmax_quant_spec=plain),
        config.QConfig(layer(weight=plain), kv_cache_quant_config={"*": layer(weight=plain)}, kv_cache_post_rope=True),
        config.QConfig(
            layer(weight=plain), kv_cache_quant_config={"*": layer(weight=plain, output_tensors=plain)}, exclude=["0"]
        ),
        config.QConfig(layer(weight=[plain, plain])),
        config.QConfig(layer(weight=plain, input_tensors=spec(observer_cls=power, is_dynamic=False))),
        *(
            config.QConfig(layer(weight=spec(**more)))
            for more in (
                {"observer_cls": PerTensorHistogramObserver},
                {"observer_cls": OwnObserver},
                {"qat_spec": object()},
                {"qscheme": type.QSchemeType.per_block, "block_size": (128, 128)},
                {"scale_type": type.ScaleType.pof2},
                {"dtype": type.Dtype.mx6, "group_size": 32},
                {"dtype": type.Dtype.fp8_e5m3},
            )
        ),
    ):
        with pytest.raises(kvant.UnsupportedError) as caught:
            ModelQuantizer(given).quantize_model(model)
        assert caught.value.remedy
    for options in ({"attention_scheme": "fp8"}, {"kv_cache_scheme": "fp8", "exclude_layers": ["*v_proj"]}):
        chosen = LLMTemplate.get("llama").get_config("fp8", **options)
        with pytest.raises(kvant.UnsupportedError, match="attention_scheme|kv_cache_quant_config"):
            ModelQuantizer(chosen).quantize_model(nn.ModuleDict({"v_proj": nn.Linear(8, 8)}), [torch.zeros(1, 8)])
    with pytest.raises(kvant.UnsupportedError, match="GGUF"):
        export_gguf(model, "out", "llama", "tokenizer")


class Block(nn.Module):
    """A norm before two layers, and a third one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        with torch.no_grad():
            self.norm.weight.copy_(torch.logspace(-1, 1, 32))

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.down(torch.sigmoid(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


PAIRS = [{"prev_op": "norm", "layers": ["up", "gate"], "inp": "up", "module2inspect": ""}]
INSIDE = {"inside_layer_modules": ["up", "gate"], "model_decoder_layers": "layers"}


@pytest.mark.parametrize(
    ("entries", "algorithm", "smoothing", "others"),
    [
        ([("AWQConfig", {})], "awq", None, None),
        ([("SmoothQuantConfig", {})], "smoothquant:alpha=1:clamp-min=0.001", None, None),
        ([("SmoothQuantConfig", {"alpha": 0.7})], "smoothquant:alpha=0.7:clamp-min=0.001", None, None),
        ([("AutoSmoothQuantConfig", {"compute_scale_loss": "MAE"})], "autosmoothquant:loss=mae", None, None),
        ([("GPTAQConfig", {"damp_percent": 0.05})], "gptaq:damping=0.05:alpha=0.25", None, None),
        ([("QronosConfig", {})], "qronos", None, None),
        ([("GPTQConfig", {}), ("AWQConfig", {})], "awq,gptq", None, None),
        ([("GPTQConfig", {"desc_act": False})], "gptq:order=stored", None, None),
        ([("QronosConfig", INSIDE)], "qronos", None, {"layers.*.down": None, "head": None}),
        (
            [
                ("SmoothQuantConfig", {"scaling_layers": PAIRS, "model_decoder_layers": "layers"}),
                ("GPTQConfig", INSIDE),
            ],
            "smoothquant:alpha=1:clamp-min=0.001,gptq",
            {f"layers.{block}.norm": [f"layers.{block}.up", f"layers.{block}.gate"] for block in range(2)},
            {name: "smoothquant:alpha=1:clamp-min=0.001" for name in ("layers.*.down", "head")},
        ),
    ],
)
def test_algorithms_of_quark_are_those_of_kvant(entries: Any, algorithm: str, smoothing: Any, others: Any) -> None:
    config, type = configs()
    from kvant.compat.quark.torch import ModelQuantizer

    torch.manual_seed(0)
    model, data = Decoder().eval(), [torch.randn(40, 32) for _ in range(2)]
    expected = copy.deepcopy(model)
    scheme = "int4:g16"
    weight = config.QTensorConfig(
        dtype=type.Dtype.int4, qscheme=type.QSchemeType.per_group, ch_axis=-1, group_size=16, symmetric=True
    )
    algo_config = [getattr(config, name)(**options) for name, options in entries]
    ModelQuantizer(config.QConfig(config.QLayerConfig(weight=weight), algo_config=algo_config)).quantize_model(
        model, data
    )
    overrides = {pattern: kt.LayerRecipe(scheme, algorithm=other or "rtn") for pattern, other in (others or {}).items()}
    kt.quantize_(expected, scheme, data, algorithm=algorithm, smoothing=smoothing, overrides=overrides)
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_templates_take_algorithms_by_name() -> None:
    config, _ = configs()
    from kvant.compat.quark.torch import LLMTemplate, ModelQuantizer

    torch.manual_seed(0)
    model, data = Decoder().eval(), [torch.randn(40, 32) for _ in range(2)]
    expected = copy.deepcopy(model)
    template = LLMTemplate.get("llama")
    given = {"gptq": config.GPTQConfig(damp_percent=0.05, **INSIDE)}
    int4 = config.Int4PerGroupSpec(ch_axis=-1, group_size=16).to_quantization_spec()
    template.register_scheme("int4_wo_16", config.QLayerConfig(weight=int4))
    chosen = template.get_config("int4_wo_16", algorithm=["awq", "gptq"], exclude_layers=["head"], algo_configs=given)
    template.unregister_scheme("int4_wo_16")
    ModelQuantizer(chosen).quantize_model(model, data)
    down = {"layers.*.down": kt.LayerRecipe("int4:g16", algorithm="awq")}
    kt.quantize_(expected, "int4:g16", data, algorithm="awq,gptq:damping=0.05", exclude="head", overrides=down)
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    with pytest.raises(kvant.UnsupportedError, match="rotation"):
        template.get_config("int8", algorithm="rotation")


def test_mistakes_in_algorithms_are_named() -> None:
    config, type = configs()
    from kvant.compat.quark.torch import ModelQuantizer

    weight = config.QTensorConfig(dtype=type.Dtype.int8, symmetric=True)
    other = [{"prev_op": "norm", "layers": ["up"]}]
    for entries, error, text in (
        ([config.GPTQConfig(), config.QronosConfig()], kvant.UnsupportedError, "gptq and qronos at once"),
        ([config.GPTQConfig(inside_layer_modules=["up"])], kvant.UnsupportedError, "model_decoder_layers"),
        (
            [
                config.AWQConfig(scaling_layers=PAIRS, model_decoder_layers="layers"),
                config.SmoothQuantConfig(scaling_layers=other, model_decoder_layers="layers"),
            ],
            kvant.UnsupportedError,
            "different scaling_layers",
        ),
        (config.AWQConfig(scaling_layers=PAIRS, model_decoder_layers="blocks"), kvant.UsageError, "'blocks'"),
        (
            config.GPTQConfig(inside_layer_modules=["upp"], model_decoder_layers="layers"),
            kvant.UsageError,
            "inside_layer_modules",
        ),
        ([object()], kvant.UnsupportedError, "does not run on models in place"),
    ):
        quantizer = ModelQuantizer(config.QConfig(config.QLayerConfig(weight=weight), algo_config=entries))
        model = Decoder()
        with pytest.raises(error, match=text):
            quantizer.quantize_model(model, [torch.randn(4, 32)])
        assert not list(kt.quantized_modules(model))


def test_short_forms_stand_for_what_they_do_in_quark() -> None:
    config = pytest.importorskip("quark.torch.quantization.config.config")
    import dataclasses

    from kvant.compat.quark.torch.quantization.config import config as ours

    def described(given: Any) -> dict[str, Any]:
        """The fields that both have, enums and observers by name."""
        found = {name: value for name, value in vars(given).items() if value is not None}
        return {name: getattr(value, "name", getattr(value, "__name__", value)) for name, value in found.items()}

    given = {"ch_axis": -1, "group_size": 32, "block_size": 64}
    names = [name for name in vars(config) if name.endswith("Spec") and dataclasses.is_dataclass(vars(config)[name])]
    bases = {"DataTypeSpec", "OCP_MXSpec"}
    compared = [name for name in names if name not in bases and issubclass(vars(config)[name], config.DataTypeSpec)]
    assert len(compared) >= 38
    for name in compared:
        theirs, mine = vars(config)[name], getattr(ours, name)
        fields = [[(field.name, field.default) for field in dataclasses.fields(kind)] for kind in (theirs, mine)]
        missing = dataclasses.MISSING
        assert sorted(fields[0], key=str) == sorted(fields[1], key=str), name
        arguments = {field: given[field] for field, default in fields[0] if default is missing}
        if name == "Uint4PerChannelSpec":
            arguments["is_dynamic"] = False
        expected, found = (described(kind(**arguments).to_quantization_spec()) for kind in (theirs, mine))
        assert found == expected, name
    assert not hasattr(ours, "NothingSpec")


def test_short_forms_quantize() -> None:
    from kvant.compat.quark.torch import ModelQuantizer
    from kvant.compat.quark.torch.quantization.config.config import (
        FP8E4M3PerTensorSpec,
        Int8PerTensorSpec,
        OCP_MXFP4Spec,
        QConfig,
        QLayerConfig,
        Uint4PerGroupSpec,
    )

    torch.manual_seed(0)
    for spec, activation in (
        (Int8PerTensorSpec(), Int8PerTensorSpec(is_dynamic=True)),
        (Uint4PerGroupSpec(ch_axis=-1, group_size=32), None),
        (OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False), OCP_MXFP4Spec(ch_axis=-1)),
        (FP8E4M3PerTensorSpec(), FP8E4M3PerTensorSpec(observer_method="percentile")),
    ):
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).eval()
        data = [torch.randn(4, 64)]
        expected = model(data[0])
        inputs = None if activation is None else activation.to_quantization_spec()
        layer = QLayerConfig(weight=spec.to_quantization_spec(), input_tensors=inputs)
        made = ModelQuantizer(QConfig(global_quant_config=layer)).quantize_model(model, data)(data[0])
        assert not torch.equal(made, expected) and torch.allclose(made, expected, atol=0.3)
    with pytest.raises(kvant.UsageError, match="observer_method"):
        Int8PerTensorSpec(observer_method="least").to_quantization_spec()


def test_observers_and_rules_give_the_weights_of_quark() -> None:
    quark = pytest.importorskip("quark.torch")
    import importlib

    from kvant.compat.quark import torch as compat

    def made(module: Any, observer: str, dtype: str, shared: str, more: dict[str, Any]) -> Any:
        where = f"{module.__name__}.quantization"
        config, type, observers = (
            importlib.import_module(f"{where}.{name}") for name in ("config.config", "config.type", "observer")
        )
        spec = config.QTensorConfig(
            dtype=type.Dtype[dtype],
            observer_cls=getattr(observers, observer),
            qscheme=type.QSchemeType[shared],
            round_method=type.RoundType.half_even,
            scale_type=type.ScaleType.float,
            is_dynamic=False,
            **more,
        )
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8))
        quantizer = module.ModelQuantizer(config.QConfig(config.QLayerConfig(weight=spec)))
        return quantizer.freeze(quantizer.quantize_model(model, [torch.zeros(1, 64)]))

    channel, blocks = {"ch_axis": 0}, {"ch_axis": -1, "group_size": 8, "scale_format": "e8m0"}
    cases: list[tuple[str, str, str, dict[str, Any]]] = [
        (observer, dtype, shared, {**axis, "symmetric": is_symmetric})
        for observer, shared, axis in (
            ("PerTensorPowOf2MinMaxObserver", "per_tensor", {}),
            ("PerTensorPowOf2MinMSEObserver", "per_tensor", {}),
            ("PerChannelPowOf2MinMaxObserver", "per_channel", channel),
        )
        for dtype in ("int8", "uint8")
        for is_symmetric in (True, False)
    ]
    cases += [
        ("PerBlockMXObserver", dtype, "per_group", {**blocks, "scale_calculation_mode": rule})
        for dtype in ("fp4", "fp6_e2m3")
        for rule in ("even", "floor", "ceil", None)
    ]
    cases.append(("PerBlockMXBufferReuseObserver", "fp4", "per_group", blocks))
    for case in cases:
        ours, theirs = made(compat, *case), made(quark, *case)
        for layer in (0, 2):
            assert torch.equal(ours[layer].weight, theirs[layer].weight), case


def test_configurations_become_dicts_and_come_back() -> None:
    config, _ = configs()
    from kvant.compat.quark._types import OBSERVERS

    spec = config.Int4PerGroupSpec(ch_axis=-1, group_size=32).to_quantization_spec()
    layer = config.QLayerConfig(weight=[spec, spec], bias=spec)
    algorithms = [config.GPTQConfig(damp_percent=0.1), config.SmoothQuantConfig(alpha=0.5)]
    given = config.QConfig(
        layer,
        exclude=["head"],
        algo_config=algorithms,
        layer_type_quant_config={nn.Conv2d: layer},
        kv_cache_group=["k"],
    )
    again = config.QConfig.from_dict(given.to_dict())
    assert again.to_dict() == given.to_dict() and again.algo_config == algorithms
    assert again.global_quant_config == layer and again.get_rotation_config() is None
    assert pickle.loads(pickle.dumps(given)) == given and pickle.loads(pickle.dumps(OBSERVERS)) == OBSERVERS
    spec.set_group_size(-1)
    assert spec.group_size == -1
    with pytest.raises(kvant.UsageError, match="group_size"):
        spec.set_group_size(0)
    with pytest.raises(kvant.UsageError, match="observer_cls"):
        config.QTensorConfig.from_dict({**spec.to_dict(), "observer_cls": "Another"})
    mxfp4 = config.OCP_MXFP4Spec(ch_axis=-1).to_quantization_spec()
    assert mxfp4.is_ocp_mxfp4() and not spec.is_ocp_mxfp4()


def test_algorithms_come_from_files(tmp_path: Path) -> None:
    config, _ = configs()
    from kvant.compat.quark.torch import quantization

    file = tmp_path / "algorithm.json"

    def loaded(**given: Any) -> Any:
        file.write_text(json.dumps(given))
        return quantization.load_quant_algo_config_from_file(str(file))

    expected = config.GPTQConfig(damp_percent=0.1, inside_layer_modules=["up"])
    assert loaded(name="gptq", damp_percent=0.1, inside_layer_modules=["up"], num_attention_heads=4) == expected
    assert loaded(name="smooth", alpha=0.3) == config.SmoothQuantConfig(alpha=0.3)
    assert loaded(name="awq", num_key_value_heads=2) == config.AWQConfig()
    with pytest.raises(kvant.UnsupportedError, match="rotation"):
        loaded(name="rotation", scaling_layers={})
    with pytest.raises(kvant.UsageError, match="damping"):
        loaded(name="gptq", damping=0.1)
    with pytest.raises(kvant.UsageError, match="'other'"):
        loaded(name="other")


def test_models_are_written_and_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from kvant.compat.quark import torch as compat
    from kvant.compat.quark.torch.export import ExporterConfig, JsonExporterConfig, ModelExporter

    def llama(seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).eval()

    source, out = tmp_path / "float", tmp_path / "out"
    llama(1).save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.txt").write_text("")
    model = transformers.LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    quantizer = compat.ModelQuantizer(compat.LLMTemplate.get("llama").get_config("int8"))
    batch = {"input_ids": torch.arange(32).reshape(2, 16)}
    model = quantizer.freeze(quantizer.quantize_model(model, [batch]))
    with torch.no_grad():
        expected = model(**batch).logits
        # Directories and files of earlier runs are no obstacle.
        for _ in range(2):
            compat.export_safetensors(model, str(out))
            compat.save_params(model, "llama", export_dir=tmp_path / "params")
        assert {file.name for file in out.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
        assert not (out / "notes.txt").exists()
        for loaded in (
            compat.import_model_from_safetensors(llama(2), model_dir=str(out)),
            compat.import_model_from_safetensors(None, str(out)),
            compat.load_params(llama(2), safetensors_path=tmp_path / "params/llama.safetensors"),
        ):
            assert torch.equal(loaded(**batch).logits, expected)
    exporter = ModelExporter(ExporterConfig(JsonExporterConfig()), tmp_path / "older")
    exporter.export_safetensors_model(model)
    assert (tmp_path / "older/model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    for options in ({"weight_format": "fake_quantized"}, {"pack_method": "order"}):
        with pytest.raises(kvant.UnsupportedError):
            ModelExporter(ExporterConfig(JsonExporterConfig(**options)), tmp_path / "older").export_safetensors_model(
                model
            )
    with pytest.raises(kvant.UnsupportedError, match="without a model"):
        compat.load_params(None, safetensors_path=tmp_path / "params/llama.safetensors")
    with pytest.raises(kvant.UnsupportedError, match=r"kvant.quantize\('a', 'int8:tensor\+.*', output='b'\)"):
        quantizer.direct_quantize_checkpoint("a", "b")


@pytest.mark.parametrize(
    "options", [{"do_constant_folding": True, "verbose": False}, {"dynamo": True, "verbose": False}]
)
def test_onnx_export_takes_the_arguments_of_quark(options: dict[str, Any], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    config, _ = configs()
    from kvant.compat.quark.torch import ModelQuantizer, export_onnx

    spec = config.Int8PerTensorSpec().to_quantization_spec()
    x = torch.randn(2, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    quantizer = ModelQuantizer(config.QConfig(config.QLayerConfig(weight=spec, input_tensors=spec)))
    model = quantizer.freeze(quantizer.quantize_model(model, [x]))
    names = {"input_names": ["given"], "output_names": ["made"]}
    path = export_onnx(model, str(tmp_path), (x,), 20, **names, **options)
    graph = onnx.load(path)
    assert [entry.name for entry in (*graph.graph.input, *graph.graph.output)] == ["given", "made"]
    assert [entry.version for entry in graph.opset_import if not entry.domain] == [20]
    for wrong in ({"uint4_int4_flag": True}, {"operator_export_type": torch.onnx.OperatorExportTypes.ONNX_ATEN}):
        with pytest.raises(kvant.UnsupportedError, match=next(iter(wrong))):
            export_onnx(model, str(tmp_path), (x,), **wrong)
