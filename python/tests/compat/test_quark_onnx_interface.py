"""Scripts for AMD Quark's ONNX flow with only their imports changed."""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

onnx = pytest.importorskip("onnx")

import onnx_nets as nets  # noqa: E402
from onnx_nets import Reader, constants_of, differences  # noqa: E402

import kvant  # noqa: E402
import kvant.compat.quark.onnx as compat  # noqa: E402
from kvant.compat.quark._onnx import OPTIONS  # noqa: E402
from kvant.compat.quark.onnx.quantization.config import get_default_config, get_default_config_mapping  # noqa: E402

NETS = {**nets.NETS, "normalized": nets.normalized}


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[Any]:
    """amd-quark, whose output on the console is dropped."""
    pytest.importorskip("onnxruntime")
    module = pytest.importorskip("quark.onnx")
    logging.disable(logging.CRITICAL)
    with (tmp_path / "log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield module
    logging.disable(logging.NOTSET)


def config_of(module: Any) -> Any:
    """The module `quantization.config` of Quark or of Kvant."""
    return importlib.import_module(f"{module.__name__}.quantization.config")


Configuration = Callable[[Any], Any]


def both(reference: Any, tmp_path: Path, net: str, configuration: Configuration) -> list[Any]:
    """What Quark and Kvant write for the same configuration of a generated net."""
    model = NETS[net]()
    return quantized(reference, tmp_path, model, Reader(model), configuration)


def quantized(reference: Any, tmp_path: Path, model: Any, reader: Reader, configuration: Configuration) -> list[Any]:
    """What Quark and Kvant write for the same configuration, model and data."""
    source = tmp_path / "model.onnx"
    onnx.save(model, source)
    made = []
    for name, module in (("expected", reference), ("made", compat)):
        path = tmp_path / f"{name}.onnx"
        quantizer = module.ModelQuantizer(copy.deepcopy(configuration(module)))
        reader.rewind()
        # Quark also writes to the working directory.
        with pytest.MonkeyPatch.context() as patch:
            if module is reference:
                patch.chdir(tmp_path)
            quantizer.quantize_model(str(source), str(path), reader)
        made.append(onnx.load(path))
    return made


def blocks(model: Any) -> list[Any]:
    """The attributes of operators that round in blocks, which have no codes."""
    return sorted(
        (node.op_type, sorted((entry.name, onnx.helper.get_attribute_value(entry)) for entry in node.attribute))
        for node in model.graph.node
        if node.op_type in ("BFPQuantizeDequantize", "MXQuantizeDequantize")
    )


def equal(expected: Any, made: Any) -> None:
    """Checks scales, zero points and codes. The bias that an Add became has another name."""
    for tensor in made.graph.initializer:
        tensor.name = tensor.name.replace("a1_bias", "b1")
    # NPU presets: Sigmoid as HardSigmoid is followed by a constant factor.
    extra = {"s_Scale"}
    assert [name for name in differences(expected, made) if name not in extra] == []
    assert blocks(expected) == blocks(made)


def layer(module: Any, activation: Any, weight: Any, **more: Any) -> Any:
    return module.QConfig(module.QLayerConfig(input_tensors=activation, weight=weight), **more)


def minmax(module: Any, name: str = "Int8Spec", **more: Any) -> Any:
    return getattr(module, name)(calibration_method=module.CalibMethod.MinMax, **more)


def named(name: str, **changes: Any) -> Configuration:
    """An older configuration by its name."""

    def make(module: Any) -> Any:
        config = copy.deepcopy(config_of(module).get_default_config(name))
        for field, value in changes.items():
            setattr(config, field, value)
        return module.Config(global_quant_config=config)

    return make


CONFIGURATIONS: dict[str, Configuration] = {
    "XINT8_QCONFIG": lambda module: module.XINT8_QCONFIG,
    "A8W8_QCONFIG": lambda module: module.A8W8_QCONFIG,
    "A16W8_QCONFIG": lambda module: module.A16W8_QCONFIG,
    "BF16_QCONFIG": lambda module: module.BF16_QCONFIG,
    "BFP16_QCONFIG": lambda module: module.BFP16_QCONFIG,
    "XINT8": lambda module: module.QConfig.get_default_config("XINT8"),
    "A8W8": named("A8W8"),
    "A16W8": named("A16W8"),
    "S16S8_ASWS": named("S16S8_ASWS"),
    "INT8_TRANSFORMER_DEFAULT": named("INT8_TRANSFORMER_DEFAULT"),
    "INT16_TRANSFORMER_DEFAULT": named("INT16_TRANSFORMER_DEFAULT"),
    "moving average": lambda module: layer(
        module, minmax(module), minmax(module), extra_options={"CalibMovingAverage": True}
    ),
    "INT8_CNN_DEFAULT": named("INT8_CNN_DEFAULT"),
    "INT16_CNN_DEFAULT": named("INT16_CNN_DEFAULT"),
    "FP16": named("FP16"),
    "BF16": named("BF16"),
    "BF16_BFP16": named("BF16_BFP16"),
    "BF16_MXINT8": named("BF16_MXINT8"),
    "MX9": named("MX9"),
    "MX9_INT8": named("MX9_INT8"),
    "MXFP8E4M3": named("MXFP8E4M3"),
    "without CLE": named("A8W8", include_cle=False),
    "minmax": lambda module: layer(module, minmax(module), minmax(module)),
    "per channel": lambda module: layer(
        module, minmax(module), minmax(module, quant_granularity=module.QuantGranularity.Channel)
    ),
    "uint8": lambda module: layer(module, minmax(module, "UInt8Spec"), minmax(module)),
    "uint8, symmetric": lambda module: layer(module, minmax(module, "UInt8Spec", symmetric=True), minmax(module)),
    "uint8 weights": lambda module: layer(module, minmax(module, "UInt8Spec"), minmax(module, "UInt8Spec")),
    "int8, asymmetric": lambda module: layer(module, minmax(module, symmetric=False), minmax(module)),
    "older, per channel": named("INT8_CNN_DEFAULT", per_channel=True),
    "uint16": lambda module: layer(module, minmax(module, "UInt16Spec"), minmax(module)),
    "int16": lambda module: layer(module, module.Int16Spec(), module.Int16Spec()),
    "nonoverflow": lambda module: layer(module, minmax(module, "XInt8Spec"), minmax(module, "XInt8Spec")),
    "layerwise": lambda module: layer(
        module,
        module.Int8Spec(calibration_method=module.CalibMethod.LayerwisePercentile),
        module.Int8Spec(),
    ),
    "percentile": lambda module: layer(module, module.Int8Spec(), module.Int8Spec(), extra_options={"Percentile": 90}),
    "percentile, asymmetric": lambda module: layer(
        module, module.UInt8Spec(), module.Int8Spec(), extra_options={"Percentile": 90}
    ),
    "CLE": lambda module: layer(module, module.Int8Spec(), module.Int8Spec(), algo_config=[module.CLEConfig()]),
    "MX4": lambda module: layer(module, module.MX4Spec(), module.MX4Spec()),
    "MXInt8": lambda module: layer(module, module.MXInt8Spec(), module.MXInt8Spec()),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_codes_are_those_of_quark(net: str, name: str, reference: Any, tmp_path: Path) -> None:
    if "TRANSFORMER" in name and net == "normalized":
        pytest.skip("only products are quantized, and the net has none")
    equal(*both(reference, tmp_path, net, CONFIGURATIONS[name]))


@pytest.mark.parametrize("name", ["XINT8_QCONFIG", "A8W8_QCONFIG", "XINT8", "A8W8", "INT8_CNN_DEFAULT", "BF16"])
def test_transformer(name: str, reference: Any, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "tests/golden/onnx"
    model = onnx.load(source / "tinytransformer.float.onnx")
    reader = Reader(nets.products())
    with numpy.load(source / "tinytransformer.calib.npz") as data:
        reader.batches = [{"ids": row[numpy.newaxis]} for row in data["ids"]]
    equal(*quantized(reference, tmp_path, model, reader, CONFIGURATIONS[name]))


def test_first_example_of_the_documentation(tmp_path: Path, graph: Path, samples: dict[str, Any]) -> None:
    input_model_path, output_model_path = str(graph), str(tmp_path / "quantized.onnx")

    from kvant.compat.onnxruntime.quantization import CalibrationDataReader
    from kvant.compat.quark.onnx import ModelQuantizer
    from kvant.compat.quark.onnx.quantization.config import Config, get_default_config

    class ImageDataReader(CalibrationDataReader):
        def __init__(self) -> None:
            (name,) = samples
            self.data = iter([{name: sample[numpy.newaxis]} for sample in samples[name]])

        def get_next(self) -> Any:
            return next(self.data, None)

    quant_config = get_default_config("XINT8")
    config = Config(global_quant_config=quant_config)
    quantizer = ModelQuantizer(config)
    quantizer.quantize_model(input_model_path, output_model_path, ImageDataReader())
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(output_model_path).graph.node) > 3


def test_specific_layers_types_and_exclusions(reference: Any, tmp_path: Path) -> None:
    def types(module: Any) -> Any:
        wide = module.QLayerConfig(input_tensors=minmax(module, "Int16Spec"), weight=minmax(module))
        return layer(module, minmax(module), minmax(module), layer_type_config={wide: ["MatMul"], None: ["Mul"]})

    def nodes(module: Any) -> Any:
        wide = module.QLayerConfig(input_tensors=minmax(module, "Int16Spec"), weight=minmax(module, "Int16Spec"))
        return layer(module, minmax(module), minmax(module), specific_layer_config={wide: ["mm_o"]})

    for configuration in (types, nodes):
        equal(*both(reference, tmp_path, "attention", configuration))
    for exclude in (["conv2"], ["^conv.*"], [(["conv2"], ["add"])]):
        made = both(
            reference,
            tmp_path,
            "convolutions",
            lambda module, exclude=exclude: layer(module, minmax(module), minmax(module), exclude=exclude),
        )
        equal(*made)


def test_options_of_quark(reference: Any, tmp_path: Path) -> None:
    for options in (
        {"OpTypesToQuantize": ["Conv"]},
        {"MatMulConstBOnly": True},
        {"MatMulConstBOnly": True, "ForceQuantizeNoInputCheck": True},
        {"CalibDataSize": 2},
        {"OptimizeModel": False, "SimplifyModel": False},
        {"ExtraOpTypesToQuantize": ["Sub"], "CalibOptimizeMem": False},
        {"QuantizeBias": False},
        {"Int16Bias": True},
        {"Int32Bias": False},
        {"WeightsOnly": True},
        {"SkipPreprocess": True},
        {"NodesToQuantize": ["conv1", "mm_q"]},
        {"QuantizeAllOpTypes": True},
    ):
        for net in ("convolutions", "attention"):
            if options.get("OpTypesToQuantize") and net == "attention":
                continue
            equal(
                *both(
                    reference,
                    tmp_path,
                    net,
                    lambda module, options=options: layer(
                        module, minmax(module), minmax(module), extra_options=dict(options)
                    ),
                )
            )


@pytest.mark.parametrize("net", ["convolutions", "products", "attention"])
def test_products_only(net: str, reference: Any, tmp_path: Path) -> None:
    equal(*both(reference, tmp_path, net, named("INT8_CNN_DEFAULT", enable_npu_transformer=True)))


@pytest.mark.parametrize("changes", [{}, {"per_channel": True}])
def test_dynamic_quantization(changes: dict[str, Any], reference: Any, tmp_path: Path) -> None:
    # The bias of a convolution has the shape that the Add after it needs.
    reshaped = {"a1_bias", "b1", "b1_channels", "c1_bias_reshape_shape"}
    for net in ("products", "attention", "convolutions"):
        expected, made = both(reference, tmp_path, net, named("UINT8_DYNAMIC_QUANT", **changes))
        assert set(differences(expected, made)) <= reshaped


def test_data_readers(reference: Any, tmp_path: Path) -> None:
    model = nets.products()
    random = {module: module.RandomDataReader(model).get_next() for module in (reference, compat)}
    assert numpy.array_equal(random[reference]["x"], random[compat]["x"])
    ranges = {"x": [-2, 3]}
    random = {
        module: module.RandomDataReader(model, {"x": [4, 6]}, ranges).get_next() for module in (reference, compat)
    }
    assert numpy.array_equal(random[reference]["x"], random[compat]["x"])
    directory = tmp_path / "data"
    directory.mkdir()
    for n, batch in enumerate(Reader(model).batches):
        numpy.save(directory / f"{n}.npy", batch["x"])
    reader = compat.CachedDataReader(compat.PathDataReader(model, directory))
    assert len(reader) == 4 and numpy.array_equal(reader.get_next()["x"], Reader(model).get_next()["x"])
    by_path = compat.ModelQuantizer(compat.A8W8_QCONFIG).quantize_model(model, calibration_data_path=directory)
    by_reader = compat.ModelQuantizer(compat.A8W8_QCONFIG).quantize_model(model, None, Reader(model))
    assert differences(by_reader, by_path) == []


@pytest.mark.parametrize("algorithm", ["AdaRoundConfig", "AdaQuantConfig", "BiasCorrectionConfig", "GPTQConfig"])
def test_algorithms_change_codes(algorithm: str) -> None:
    model = nets.convolutions() if algorithm != "GPTQConfig" else nets.products()
    plain = compat.ModelQuantizer(compat.A8W8_QCONFIG).quantize_model(model, None, Reader(model, 16))
    options = {"num_iterations": 50} if algorithm.startswith("Ada") else {}
    if algorithm == "AdaQuantConfig":
        options["learning_rate"] = 1e-2
    config = layer(compat, compat.Int8Spec(), compat.Int8Spec(), algo_config=[getattr(compat, algorithm)(**options)])
    made = compat.ModelQuantizer(config).quantize_model(model, None, Reader(model, 16))
    changed = differences(plain, made)
    assert changed
    # Layers without a bias get one, for the correction.
    assert all(name.endswith("_quantized") or name.startswith("c2_bias") for name in changed)


def test_older_configurations_are_those_of_quark(reference: Any) -> None:
    theirs_by_name = importlib.import_module("quark.onnx.quantization.config.custom_config").DefaultConfigMapping
    assert get_default_config_mapping().keys() == theirs_by_name.keys()
    for name in theirs_by_name:
        ours, theirs = get_default_config(name), config_of(reference).get_default_config(name)
        for field in ours.__dataclass_fields__:
            a, b = getattr(ours, field), getattr(theirs, field)
            if "MIXED" not in name and field not in ("extra_options", "log_severity_level"):
                assert getattr(a, "name", a) == getattr(b, "name", b), (name, field)
        if "MIXED" not in name and "ACCURATE" not in name:
            assert ours.extra_options == theirs.extra_options, name


def test_configurations_become_the_dicts_of_quark(reference: Any) -> None:
    def config(module: Any) -> Any:
        wide = module.QLayerConfig(input_tensors=module.Int16Spec(), weight=module.MX9Spec())
        return module.QConfig(
            module.QLayerConfig(activation=module.XInt8Spec(), weight=module.Int8Spec(symmetric=False)),
            {wide: ["a", "b"]},
            {None: ["Mul"]},
            ["c"],
            [module.CLEConfig(cle_steps=3), module.AdaRoundConfig(num_iterations=5), module.SmoothQuantConfig(0.3)],
            True,
            extra_options={"Percentile": 99},
        )

    made = config(compat).to_dict()
    assert made == config(reference).to_dict()
    assert compat.QConfig.from_dict(made).to_dict() == made
    for name, algorithm in (("GPTQConfig", {}), ("AdaQuantConfig", {"batch_size": 2}), ("QuarotConfig", {})):
        ours, theirs = (getattr(module, name)(**algorithm) for module in (compat, reference))
        assert ours.to_dict() == theirs.to_dict()
        assert type(ours).from_dict(ours.to_dict()) == ours
    for wrong in ({"name": "cle", "steps": 3}, {"name": "other"}, {}):
        with pytest.raises(kvant.UsageError):
            compat.CLEConfig.from_dict(wrong)
    spec = compat.Int8Spec()
    spec.set_data_type(compat.UInt8)
    spec.set_symmetric(False)
    assert compat.QTensorConfig.from_dict(spec.to_dict()).data_type is compat.UInt8


def test_functions_of_quark(reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Quark writes to the working directory.
    monkeypatch.chdir(tmp_path)
    model = nets.convolutions()
    made = []
    for module in (reference, compat):
        options = {"include_cle": False, "per_channel": True, "nodes_to_exclude": ["conv2"]}
        static = module.quantize_static(
            model, None, Reader(model), activation_type=module.QuantType.QUInt8, extra_options={}, **options
        )
        dynamic = module.quantize_dynamic(nets.products(), None, per_channel=True)
        made.append((static, dynamic))
    for expected, found in zip(*made, strict=True):
        equal(expected, found)


def test_every_method_and_configuration_works_or_is_refused() -> None:
    model = nets.products()
    configs: list[Any] = []
    for method in compat.CalibMethod:
        for scale_type in compat.ScaleType:
            spec = compat.Int8Spec(calibration_method=method, scale_type=scale_type)
            configs.append(compat.QConfig(compat.QLayerConfig(input_tensors=spec, weight=spec)))
    older = (compat.CalibrationMethod, compat.PowerOfTwoMethod, compat.LayerWiseMethod, compat.Int16Method)
    for method in (member for methods in older for member in methods):
        configs.append(compat.Config(compat.QuantizationConfig(calibrate_method=method, include_cle=False)))
    tuned = ("ADAROUND", "ADAQUANT", "ACCURATE")
    names = [name for name in get_default_config_mapping() if not name.endswith(tuned)]
    configs += [compat.QConfig.get_default_config(name) for name in names]
    made = 0
    for config in configs:
        try:
            assert compat.ModelQuantizer(config).quantize_model(model, None, Reader(model)) is not None
            made += 1
        except kvant.UnsupportedError as error:
            assert error.remedy
    assert made > len(configs) / 2


def test_every_option_of_quark_is_known(reference: Any) -> None:
    names = importlib.import_module("quark.onnx.quantization.config.maps").QCONFIG_ALL_PARAMS
    # The others are arguments.
    options = {name for name in names if name[0].isupper()}
    assert len(options) > 100 and options <= OPTIONS


def refused(error: type[Exception], config: Any) -> str:
    """The message of a configuration that is refused."""
    model = nets.products()
    with pytest.raises(error) as caught:
        compat.ModelQuantizer(config).quantize_model(model, None, Reader(model))
    return str(caught.value)


@pytest.mark.parametrize("name", ["BFP16", "MATMUL_NBITS", "S16S16_MIXED_S8S8", "BF16_MIXED_BFP16"])
def test_older_configurations_that_are_refused(name: str) -> None:
    assert "hint: " in refused(kvant.UnsupportedError, compat.QConfig.get_default_config(name))


@pytest.mark.parametrize(
    "options",
    [
        {"AddQDQPairToWeight": True},
        {"ConvertClipToRelu": True},
        {"DedicatedQDQPair": True},
        {"Int16Scale": True},
        {"RemoveQDQConvRelu": False},
        {"SimulateDPU": True},
        {"TensorQuantOverrides": {"x": []}},
        {"UseMatMulNBits": True},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    config = layer(compat, compat.Int8Spec(), compat.Int8Spec(), extra_options=options)
    if options.get("TensorQuantOverrides") == {"x": []}:
        options["TensorQuantOverrides"] = {"x": [{"scale": 1.0}]}
    assert next(iter(options)) in refused(kvant.UnsupportedError, config)


def test_other_requests_that_are_refused() -> None:
    def with_algorithm(algorithm: Any) -> Any:
        return layer(compat, compat.Int8Spec(), compat.Int8Spec(), algo_config=[algorithm])

    target = compat.QLayerConfig(input_tensors=compat.Int16Spec(), weight=compat.Int8Spec())
    for algorithm, word in (
        (compat.AutoMixprecisionConfig(target), "sensitivity"),
        (compat.QuarotConfig(), "rotate"),
        (compat.AdaRoundConfig(data_size=2), "data_size"),
        (compat.AdaQuantConfig(lr_adjust=(1.0, 0.1)), "lr_adjust"),
        (compat.GPTQConfig(bits=4), "GPTQConfig"),
        (compat.CLEConfig(cle_balance_method="mean"), "cle_balance_method"),
    ):
        assert word in refused(kvant.UnsupportedError, with_algorithm(algorithm))
    assert "two types" in refused(kvant.UnsupportedError, layer(compat, compat.XInt8Spec(), compat.Int8Spec()))
    assert "fall" in refused(kvant.UnsupportedError, layer(compat, compat.BFloat16Spec(), compat.BFP16Spec()))
    assert "int32" in refused(kvant.UnsupportedError, layer(compat, compat.Int32Spec(), compat.Int8Spec()))
    assert "Unknown" in refused(kvant.UsageError, layer(compat, compat.Int8Spec(), compat.Int8Spec(), Unknown=1))
    with pytest.raises(kvant.UsageError, match="no configuration"):
        compat.QConfig.get_default_config("XINT9")
    with pytest.raises(kvant.UsageError, match="calibration data"):
        compat.ModelQuantizer(compat.A8W8_QCONFIG).quantize_model(nets.products())
    for name in ("AutoSearch", "get_library_path"):
        with pytest.raises(kvant.UnsupportedError, match=name):
            getattr(compat, name)("model.onnx", None)


def test_methods_that_differ_warn() -> None:
    model = nets.products()
    for method in ("Entropy", "MinMSE"):
        spec = compat.Int8Spec(calibration_method=compat.CalibMethod[method])
        with pytest.warns(kvant.KvantWarning, match=method):
            made = compat.ModelQuantizer(layer(compat, spec, minmax(compat))).quantize_model(model, None, Reader(model))
        assert "w1_quantized" in constants_of(made)
