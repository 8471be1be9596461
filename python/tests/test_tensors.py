"""Single tensors of numpy and torch."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import kvant

RANDOM = numpy.random.default_rng(7)
WEIGHT = RANDOM.standard_normal((96, 256), dtype=numpy.float32)


def signal_to_noise(array: numpy.ndarray, restored: numpy.ndarray) -> float:
    noise = numpy.square(array - restored, dtype=numpy.float64).sum() or 1e-30
    return 10 * float(numpy.log10(numpy.square(array, dtype=numpy.float64).sum() / noise))


def listed(topic: str) -> list[str]:
    """The names that `kvant list` shows."""
    run = [sys.executable, "-m", "kvant", "list", topic, "--json"]
    rows = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)["rows"]
    return [row["name"] for row in rows]


def test_every_listed_scheme_quantizes() -> None:
    for scheme in listed("schemes"):
        quantized = kvant.quantize_tensor(WEIGHT, scheme)
        restored = quantized.dequantize()
        assert restored.dtype == numpy.float32 and restored.shape == WEIGHT.shape, scheme
        assert signal_to_noise(WEIGHT, restored) > (1 if scheme.startswith("TQ") or "2" in scheme else 8), scheme
        assert (kvant.fake_quantize(WEIGHT, scheme) == restored).all(), scheme


def test_codes_follow_from_the_definition() -> None:
    quantized = kvant.quantize_tensor(WEIGHT, "int4:g128")
    assert quantized.scale.shape == (96, 2) and quantized.codes.shape == WEIGHT.shape
    assert quantized.codes.dtype == numpy.int8 and quantized.zero_point is None and quantized.dtype == "int4"
    groups = WEIGHT.reshape(96, 2, 128)
    scale = numpy.abs(groups).max(axis=2) / numpy.float32(7.5)
    assert (quantized.scale == scale).all()
    codes = numpy.clip(numpy.rint(groups * (1 / scale)[..., None]), -8, 7).reshape(WEIGHT.shape)
    assert (quantized.codes == codes).all()

    asymmetric = kvant.quantize_tensor(WEIGHT, "uint4:channel:zp")
    assert asymmetric.scale.shape == asymmetric.zero_point.shape == (96,)
    assert asymmetric.zero_point.dtype == numpy.int32 and asymmetric.codes.dtype == numpy.uint8
    values = (asymmetric.codes - asymmetric.zero_point[:, None]) * asymmetric.scale[:, None]
    assert (values.astype(numpy.float32) == asymmetric.dequantize()).all()

    assert kvant.quantize_tensor(WEIGHT, "int8:tensor").scale.shape == ()
    assert kvant.quantize_tensor(WEIGHT, "int8:channel@1").scale.shape == (256,)
    assert kvant.quantize_tensor(WEIGHT, "int16:channel").codes.dtype == numpy.int16
    assert isinstance(kvant.quantize_tensor(WEIGHT, "nvfp4").global_scale, float)
    assert kvant.quantize_tensor(WEIGHT, "Q4_K").codes.shape == (96, 144)
    assert kvant.quantize_tensor(WEIGHT, "mx6").codes is None


def test_shapes_of_other_ranks() -> None:
    kernel = RANDOM.standard_normal((8, 4, 3, 3), dtype=numpy.float32)
    quantized = kvant.quantize_tensor(kernel, "int8:channel")
    assert quantized.codes.shape == kernel.shape == quantized.dequantize().shape and quantized.scale.shape == (8,)
    assert kvant.quantize_tensor(WEIGHT[0], "int4:g128").codes.shape == (256,)
    assert kvant.quantize_tensor(WEIGHT.T, "int8:channel").scale.shape == (256,)
    assert kvant.quantize_tensor(WEIGHT[:, ::2], "int8:channel").dequantize().shape == (96, 128)
    assert kvant.quantize_tensor(WEIGHT[:0], "int8:channel").codes.shape == (0, 256)


def test_half_precision_stays_half_precision() -> None:
    half = WEIGHT.astype(numpy.float16)
    quantized = kvant.quantize_tensor(half, "int8:channel")
    assert quantized.dequantize().dtype == numpy.float16
    assert kvant.fake_quantize(half, "fp8").dtype == numpy.float16
    double = kvant.quantize_tensor(WEIGHT.astype(numpy.float64), "int8:channel")
    assert (double.codes == kvant.quantize_tensor(WEIGHT, "int8:channel").codes).all()
    assert double.dequantize().dtype == numpy.float64


# One scheme for each way to pack codes, scales and zero points.
PACKED = (
    *("int4:g32", "uint4:g32:zp", "int2:g64", "int3:g32", "W5A16", "uint8:g64:zp", "int8:tensor", "W8A8"),
    *("FP8_BLOCK", "FP8_DYNAMIC", "mxfp4", "MXFP4A16", "mxfp6_e3m2", "MXFP8", "MXFP8A16", "NVFP4A16"),
)


def packed(weight: Any, scheme: str, format: str, name: str) -> dict[str, Any]:
    """The tensors of a weight in a format; none if that has no place for the scheme."""
    try:
        return kvant.quantize_tensor(weight, scheme, format=format).packed(format, name)
    except kvant.UnsupportedError as error:
        assert error.remedy
        return {}


@pytest.mark.parametrize("format", [name for name in listed("formats") if name not in ("fake", "onnx")])
def test_packed_tensors_are_those_of_a_checkpoint(format: str, llama: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    if format == "gguf":
        pytest.skip("its blocks are compared with those of a file below")
    # A layer with a scale over block scales that it shares with none.
    source, layer = llama, "model.layers.0.mlp.down_proj"
    if format == "comfyui":
        source, layer = tmp_path / "flux.safetensors", "double_blocks.0.img_attn.qkv"
        shapes = {"img_in": (128, 64), layer: (384, 128), "single_blocks.0.linear1": (896, 128)}
        tensors = {f"{name}.weight": torch.randn(shape).bfloat16() for name, shape in shapes.items()}
        safetensors.save_file(tensors, source)
        weight = tensors[f"{layer}.weight"]
    else:
        weight = safetensors.load_file(llama / "model.safetensors")[f"{layer}.weight"]
    held = 0
    for scheme in PACKED:
        ours = packed(weight, scheme, format, layer)
        if not ours:
            continue
        held += 1
        output = tmp_path / scheme.replace(":", "-")
        kvant.quantize(source, scheme, format=format, output=output, progress=False)
        written = safetensors.load_file(output / "model.safetensors")
        assert ours.keys() == {name for name in written if name.startswith(f"{layer}.")}
        for name, tensor in ours.items():
            expected = written[name]
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), (scheme, name)
            same = torch.equal(tensor.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
            assert same, (scheme, name)
    assert held or format == "mxfp4", "gpt-oss's layout alone has no place for a layer that is one matrix"


def test_packed_blocks_are_those_of_a_gguf_file(llama: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    safetensors = pytest.importorskip("safetensors.torch")
    weight = safetensors.load_file(llama / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    for scheme in ("Q4_0", "Q5_1", "Q8_0", "IQ4_NL"):
        kvant.quantize(llama, scheme, output=tmp_path / f"{scheme}.gguf", progress=False)
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / f"{scheme}.gguf").tensors}
        expected = tensors["blk.0.ffn_down.weight"]
        if expected.tensor_type.name == scheme:
            ours = kvant.quantize_tensor(weight, scheme).packed("gguf", "blk.0.ffn_down")["blk.0.ffn_down.weight"]
            assert ours.shape == expected.data.shape and (ours.numpy() == expected.data).all(), scheme


def test_packed_tensors_are_alike_in_numpy_and_torch() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(WEIGHT)
    for format in listed("formats"):
        for scheme in (*PACKED, "Q8_0"):
            ours = packed(WEIGHT, scheme, format, "a.b")
            theirs = packed(weight, scheme, format, "a.b")
            assert ours.keys() == theirs.keys() and all(name.startswith("a.b.") for name in ours)
            for name, array in ours.items():
                tensor = theirs[name]
                assert array.shape == tensor.shape and array.itemsize == tensor.element_size(), (format, scheme, name)
                assert array.tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_formats_of_whole_models_are_refused_with_another_way(llama: Path, tmp_path: Path) -> None:
    quantized = kvant.quantize_tensor(WEIGHT, "int8:channel")
    with pytest.raises(kvant.UnsupportedError, match="holds floats") as raised:
        quantized.packed("fake")
    assert "dequantize()" in raised.value.remedy
    for wrong in (
        lambda: quantized.packed("onnx"),
        lambda: kvant.quantize_tensor(WEIGHT, "int8:channel", format="fake"),
        lambda: kvant.round_tensor(WEIGHT, "int8:channel", "hqq", format="fake"),
    ):
        with pytest.raises(kvant.UnsupportedError, match="the format (fake|onnx)"):
            wrong()
    safetensors = pytest.importorskip("safetensors.torch")
    layer = "model.layers.0.mlp.down_proj.weight"
    weight = safetensors.load_file(llama / "model.safetensors")[layer]
    kvant.quantize(llama, "int8:channel", format="fake", output=tmp_path / "fake", progress=False)
    written = safetensors.load_file(tmp_path / "fake/model.safetensors")[layer]
    assert (kvant.quantize_tensor(weight, "int8:channel").dequantize() == written).all()


def test_given_scales_are_used() -> None:
    quantized = kvant.quantize_tensor(WEIGHT, "uint4:g64:zp")
    again = kvant.fake_quantize(WEIGHT, "uint4:g64:zp", quantized.scale, quantized.zero_point)
    assert (again == quantized.dequantize()).all()
    assert (kvant.fake_quantize(WEIGHT, "int8:tensor", 0.5) == numpy.rint(WEIGHT / 0.5) * 0.5).all()
    assert (kvant.fake_quantize(WEIGHT, "int8:tensor!static", 0.5) == numpy.rint(WEIGHT / 0.5) * 0.5).all()


def test_observers_find_scales() -> None:
    observer = kvant.Observer("uint8:tensor:zp")
    batches = [RANDOM.standard_normal((2, 5, 16), dtype=numpy.float32) for _ in range(3)]
    for batch in batches:
        observer.update(batch)
    scale, zero_point = observer.parameters()
    low, high = min(b.min() for b in batches), max(b.max() for b in batches)
    assert observer.range == (low, high) and observer.not_finite == 0
    assert scale == pytest.approx((high - low) / 255) and zero_point == round(-low / float(scale))
    restored = kvant.fake_quantize(batches[0], "uint8:tensor:zp!static", scale, zero_point)
    assert numpy.abs(restored - batches[0]).max() <= scale / 2 * 1.001

    outlier = numpy.concatenate([batches[0].ravel(), numpy.full(1, 1000, numpy.float32)])
    percentile = kvant.Observer("int8:tensor", "percentile99")
    percentile.update(outlier)
    assert percentile.parameters()[0] < 1 and percentile.parameters()[1] is None
    features = kvant.Observer("int8:channel@1")
    features.update(batches[0])
    assert features.parameters()[0].shape == (16,)


def test_copies_of_observers_see_batches_of_their_own() -> None:
    observer = kvant.Observer("int8:tensor")
    observer.update(WEIGHT)
    other = copy.deepcopy(observer)
    other.update(100 * WEIGHT)
    assert other.parameters()[0] == pytest.approx(100 * observer.parameters()[0])


def test_gptq_lowers_the_error_of_outputs() -> None:
    inputs = RANDOM.standard_normal((2000, 64), dtype=numpy.float32) @ RANDOM.standard_normal(
        (64, 256), dtype=numpy.float32
    )
    hessian = kvant.Hessian(256)
    for part in numpy.array_split(inputs, 7):
        hessian.add(part)
    assert numpy.allclose(hessian.matrix(), inputs.T @ inputs, rtol=1e-3, atol=1)

    def loss(quantized: Any) -> float:
        return float(numpy.square(inputs @ (quantized.dequantize() - WEIGHT).T).sum())

    nearest = loss(kvant.quantize_tensor(WEIGHT, "int4:g64"))
    ours = kvant.gptq(WEIGHT, hessian, "int4:g64", damping=0.02)
    assert loss(ours) < 0.5 * nearest and ours.loss == pytest.approx(loss(ours), rel=0.05)
    assert loss(kvant.gptq(WEIGHT, inputs.T @ inputs, "int4:g64")) < 0.5 * nearest
    shifted = kvant.Hessian(256, mismatch=True)
    shifted.add(inputs, inputs + 0.01)
    assert loss(kvant.round_tensor(WEIGHT, "int4:g64", "qronos", shifted)) < nearest
    assert kvant.round_tensor(WEIGHT, "uint4:g64:zp", "hqq").codes.shape == WEIGHT.shape


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (lambda: kvant.quantize_tensor(WEIGHT, "int5:g"), kvant.UsageError, "int5:g"),
        (lambda: kvant.quantize_tensor(WEIGHT, "int4:g100"), kvant.InvalidError, "group size 100"),
        (lambda: kvant.quantize_tensor(WEIGHT / 0, "int4:g32"), kvant.InvalidError, "NaN or infinite"),
        (lambda: kvant.quantize_tensor(WEIGHT.astype(int), "int4:g32"), kvant.UnsupportedError, "int64"),
        (lambda: kvant.quantize_tensor(WEIGHT, "int4:g32", format="awk"), kvant.UsageError, "awk"),
        (lambda: kvant.quantize_tensor(WEIGHT, "int4:g32").packed("gguf"), kvant.UnsupportedError, "gguf"),
        (lambda: kvant.quantize_tensor(WEIGHT[:, :100], "Q4_K"), kvant.InvalidError, "block of 256"),
        (lambda: kvant.fake_quantize(WEIGHT, "int8:tensor!static"), kvant.UsageError, "scale"),
        (lambda: kvant.fake_quantize(WEIGHT, "int4:g32", [1.0]), kvant.UsageError, "768 scales"),
        (lambda: kvant.fake_quantize(WEIGHT, "int4:g32", zero_point=1), kvant.UsageError, "without scale"),
        (lambda: kvant.gptq(WEIGHT, numpy.eye(3), "int4:g64"), kvant.InvalidError, "3"),
        (lambda: kvant.gptq(WEIGHT, numpy.eye(256), "int4:g64", dampin=1), kvant.UsageError, "dampin"),
        (lambda: kvant.Observer("int8:tensor").parameters(), kvant.UsageError, "no finite value"),
        (lambda: kvant.Observer("mx6"), kvant.UnsupportedError, "mx6"),
        (lambda: kvant.Hessian(4).add(numpy.ones((2, 5), numpy.float32)), kvant.InvalidError, "5"),
    ],
)
def test_what_cannot_be_done_is_refused(made: Any, error: type[Exception], text: str) -> None:
    with numpy.errstate(all="ignore"), pytest.raises(error, match=text):
        made()


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(WEIGHT)
    quantized = kvant.quantize_tensor(weight.bfloat16(), "int4:g128")
    assert isinstance(quantized.codes, torch.Tensor) and quantized.codes.dtype == torch.int8
    assert quantized.dequantize().dtype == torch.bfloat16
    assert (
        kvant.quantize_tensor(weight, "int8:channel").codes.numpy()
        == kvant.quantize_tensor(WEIGHT, "int8:channel").codes
    ).all()
    packed = kvant.quantize_tensor(weight.bfloat16(), "fp8").packed("quark", "a")
    assert packed["a.weight"].dtype == torch.float8_e4m3fn
    eight = weight.to(torch.float8_e4m3fn)
    assert kvant.quantize_tensor(eight, "int8:channel").dequantize().dtype == torch.float8_e4m3fn
    assert kvant.fake_quantize(weight.requires_grad_(), "fp8").dtype == torch.float32
    observer = kvant.Observer("int8:tensor")
    observer.update(weight)
    assert isinstance(observer.parameters()[0], torch.Tensor)
    with pytest.raises(kvant.UnsupportedError, match="meta"):
        kvant.quantize_tensor(weight.to("meta"), "int8:tensor")


def test_reading_makes_no_copy() -> None:
    torch = pytest.importorskip("torch")
    from kvant._tensors import _weight

    for array, start in [
        (WEIGHT, WEIGHT.__array_interface__["data"][0]),
        *((t, t.data_ptr()) for t in [torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(4, 8).to(torch.float8_e5m2)]),
    ]:
        assert _weight(array).data[0].__array_interface__["data"][0] == start


def test_ctrl_c_stops_an_algorithm() -> None:
    code = """
import signal, threading, time, os, numpy, kvant
weight = numpy.random.default_rng(0).standard_normal((2048, 512), dtype=numpy.float32)
hessian = kvant.Hessian(512, mismatch=True)
hessian.add(weight, weight * 1.01)
threading.Thread(target=lambda: (time.sleep(1), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
begun = time.monotonic()
try:
    kvant.round_tensor(weight, "int4:g64", "adaround:num_iterations=100000", hessian)
except KeyboardInterrupt:
    print("stopped", time.monotonic() - begun)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.stdout.startswith("stopped"), run
