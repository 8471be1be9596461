"""The incumbents on ONNX models: amd-quark's ModelQuantizer and onnxruntime's quantize_static, and how far any quantized
model is from its float one.

    python tests/interop/onnx_oracle.py MODELS CACHE [--names a,b] [--presets A8W8,XINT8] [--tools quark,ort]

prints a table of SQNR for models of `onnx_models.py`. Results are kept in CACHE, one file for each model, data, tool and preset.
"""

import argparse
import copy
import fnmatch
import functools
import hashlib
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]  # quark wants ninja
os.environ.setdefault("QUARK_LOG_LEVEL", "error")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
from onnxruntime import quantization  # noqa: E402

ort.set_default_logger_severity(4)
PRESETS = ("A8W8", "XINT8", "A16W8")
FLOAT_PRESETS = ("BF16", "BFP16")  # these need Quark's operators to run
# What comes nearest to a preset in onnxruntime's quantizer, which knows no scales that are powers of two.
ORT_TYPES = {"A8W8": quantization.QuantType.QInt8, "A16W8": quantization.QuantType.QInt16}
VERSION = 1  # part of the cache's keys


def samples(npz, batch=1, count=None):
    """The feeds of a file of data, see `onnx_data.py`; arrays that name no input (labels) are the caller's to drop."""
    arrays = dict(np.load(npz))
    total = min(count or math.inf, *(len(a) for a in arrays.values()))
    return [{k: a[i : i + batch] for k, a in arrays.items()} for i in range(0, total - batch + 1, batch)]


def session(path, custom_ops=False):
    """An unoptimised session: optimisation moves roundings of quantized models, by other amounts in each version."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    if custom_ops:
        options.register_custom_ops_library(quark_onnx().get_library_path("cpu"))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def outputs(path, feeds, custom_ops=False):
    """{output: f64 array of all samples, one behind the other}"""
    run = session(path, custom_ops)
    names, wanted = [o.name for o in run.get_outputs()], {i.name for i in run.get_inputs()}
    rows = [run.run(names, {k: v for k, v in feed.items() if k in wanted}) for feed in feeds]
    return {name: np.stack([row[i] for row in rows]).astype(np.float64) for i, name in enumerate(names)}


def decibels(reference, quantized):
    """10 log10(sum ref^2 / sum (ref - q)^2) over the whole set."""
    noise = ((reference - quantized) ** 2).sum()
    return float("inf") if noise == 0 else float(10 * np.log10((reference**2).sum() / noise))


@functools.lru_cache(maxsize=2)
def reference_outputs(float_model, npz):
    return outputs(float_model, samples(npz))


def sqnr(float_model, model, npz, custom_ops=False):
    """{output: dB} over all samples of the file."""
    reference, found = reference_outputs(float_model, npz), outputs(model, samples(npz), custom_ops)
    return {name: decibels(reference[name], found[name]) for name in reference}


def with_unsigned_weights(path, out):
    """A copy in which QLinear operators have uint8 weights of the same values: int8 ones saturate beside uint8 activations where
    the processor lacks VNNI. (onnxruntime's own option for it, session.x64quantprecision, fails on shared weights.)"""
    model = onnx.load(path)
    operators = [n for n in model.graph.node if n.op_type in ("QLinearConv", "QLinearMatMul", "QGemm")]
    signed = {name for node in operators for name in (node.input[3], node.input[5])}
    for tensor in model.graph.initializer:
        if tensor.name in signed and tensor.data_type == onnx.TensorProto.INT8:
            raised = onnx.numpy_helper.to_array(tensor).astype(np.int16) + 128
            tensor.CopyFrom(onnx.numpy_helper.from_array(raised.astype(np.uint8), tensor.name))
    onnx.save(model, out)
    return out


def shaken(path, out, seed, amount=2e-4):
    """A copy of a quantized model whose activation scales are off by at most `amount` of themselves: ranges that another
    order of sums, or a few other samples, might have given."""
    model, rng, factors = onnx.load(path), np.random.default_rng(seed), {}
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            factors.setdefault(node.input[1], 1 + amount * rng.uniform(-1, 1))
    for node in model.graph.node:
        source = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is not None and source.op_type == "QuantizeLinear":
            factors.setdefault(node.input[1], factors[source.input[1]])
    for tensor in model.graph.initializer:
        if tensor.name in factors:
            scale = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array((scale * factors[tensor.name]).astype(scale.dtype), tensor.name))
    onnx.save(model, out)
    return out


def steady_sqnr(float_model, model, npz, times=8):
    """{output: dB}: the mean over shaken copies. One model's SQNR hangs on how its roundings happen to fall."""
    with tempfile.TemporaryDirectory() as work:
        found = [sqnr(float_model, shaken(model, f"{work}/shaken.onnx", seed), npz) for seed in range(times)]
    return {name: float(np.mean([f[name] for f in found])) for name in found[0]}


def accuracy(model, npz, labels):
    """The share of samples whose first output is largest at the label."""
    (first, *_) = outputs(model, samples(npz)).values()
    found = first.reshape(len(first), -1).argmax(1)
    return float((found == np.load(npz)[labels]).mean())


class Reader(quantization.CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds, self.rest = feeds, iter(feeds)

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter(self.feeds)

    def __len__(self):
        return len(self.feeds)


def quark_onnx():
    import quark.onnx

    return quark.onnx


def mask_nodes(model, feeds):
    """Nodes that touch attention masks (anything below -1e30): with these quantized the incumbents' attention sees nothing."""
    graph = onnx.load(model)
    known = {o.name for o in graph.graph.output}
    made = [name for node in graph.graph.node for name in node.output if name and name not in known]
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    with tempfile.TemporaryDirectory() as work:
        onnx.save(graph, probe := pathlib.Path(work) / "probe.onnx")
        run = session(probe)
        names, masked = [o.name for o in run.get_outputs()], set()
        for feed in feeds[:3]:
            values = zip(names, run.run(names, feed))
            masked |= {name for name, v in values if v.dtype == np.float32 and v.size and v.min() < -1e30}
    return [node.name for node in graph.graph.node if masked & {*node.input, *node.output}]


# The names of algorithms here and of their settings there.
ALGORITHMS = {"cle": "CLEConfig", "bias-correction": "BiasCorrectionConfig", "smoothquant": "SmoothQuantConfig", "gptq": "GPTQConfig",
              "adaround": "AdaRoundConfig", "adaquant": "AdaQuantConfig"}  # fmt: skip


def node_names(model):
    return [node.name for node in onnx.load(model, load_external_data=False).graph.node]


def quark_algorithm(asked):
    name, _, iterations = asked.partition("=")
    kind = getattr(quark_onnx(), ALGORITHMS[name])
    return kind(num_iterations=int(iterations), early_stop=False) if iterations else kind()


def quark_config(preset, model, feeds):
    """`A8W8` is the preset of Quark's present interface, `legacy:A8W8` that of `get_default_config`; the two differ.
    `nomask:A8W8` leaves out the nodes of attention masks, `channel:A8W8` has a scale for each channel of a weight,
    `products:A8W8` quantizes MatMul and Gemm alone, `products(GLOB):A8W8` not those whose names match,
    `A8W8+cle+adaround` runs algorithms with their usual settings, `A8W8+adaround=300` for so many iterations."""
    preset, *algorithms = preset.split("+")
    if algorithms:
        config = quark_config(preset, model, feeds)
        config.algo_config = [quark_algorithm(asked) for asked in algorithms]
        return config
    if preset.startswith("channel:"):
        config = quark_config(preset.split(":", 1)[1], model, feeds)
        config.global_config.weight.quant_granularity = quark_onnx().QuantGranularity.Channel
        return config
    if preset.startswith("nomask:"):
        config = quark_config(preset.split(":", 1)[1], model, feeds)
        config.exclude = mask_nodes(model, feeds)
        return config
    if preset.startswith("products"):
        style, rest = preset.split(":", 1)
        config = quark_config(rest, model, feeds)
        config.extra_options = (config.extra_options or {}) | {"OpTypesToQuantize": ["MatMul", "Gemm"]}
        config.exclude = [name for name in node_names(model) if fnmatch.fnmatchcase(name, style[len("products") :].strip("()"))]
        return config
    if preset.startswith("legacy:"):
        from quark.onnx.quantization.config.config import Config
        from quark.onnx.quantization.config.custom_config import get_default_config

        return Config(global_quant_config=get_default_config(preset.split(":", 1)[1]))
    return copy.deepcopy(getattr(quark_onnx(), f"{preset}_QCONFIG"))


def run_quark(preset, model, feeds, out):
    quark_onnx().ModelQuantizer(quark_config(preset, model, feeds)).quantize_model(str(model), str(out), Reader(feeds))


def run_ort(preset, model, feeds, out):
    """Signed, symmetric, one scale per tensor, Percentile: as the preset; after the tool's own preparation of the graph.
    `minmax:A8W8` calibrates with MinMax, `nomask:A8W8` leaves out the nodes of masks, `int4:A8W8` and `int4channel:A8W8` have
    4-bit weights, `ort:A8W8` is the tool's own advice for CPUs (u8 asymmetric, s8 per channel, MinMax)."""
    style, _, name = preset.rpartition(":")
    prepared = pathlib.Path(out).with_suffix(".prepared.onnx")
    quantization.quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
    method = quantization.CalibrationMethod.MinMax if style in ("minmax", "ort") else quantization.CalibrationMethod.Percentile
    excluded = mask_nodes(prepared, feeds) if style == "nomask" else []
    own = style == "ort"
    weight = quantization.QuantType.QInt4 if style.startswith("int4") else quantization.QuantType.QInt8
    per_channel = own or style == "int4channel"
    activation = quantization.QuantType.QUInt8 if own else ORT_TYPES[name]
    symmetric = {"ActivationSymmetric": not own, "WeightSymmetric": True}
    quantization.quantize_static(str(prepared), str(out), Reader(feeds), quant_format=quantization.QuantFormat.QDQ, per_channel=per_channel,
                                 activation_type=activation, weight_type=weight, calibrate_method=method,
                                 nodes_to_exclude=excluded, extra_options=symmetric)  # fmt: skip
    prepared.unlink()


TOOLS = {"quark": run_quark, "ort": run_ort}


class Unable(Exception):
    """The incumbent cannot do it."""


def key(tool, preset, model, npz, count):
    digest = hashlib.sha256(f"{VERSION} {tool} {preset} {count} {ort.__version__}".encode())
    for file in (model, npz):
        digest.update(pathlib.Path(file).read_bytes())
    return digest.hexdigest()[:16]


def run_alone(tool, preset, model, npz, out, count, timeout=None):
    """One quantization in a process and a directory of its own: what Quark does depends on what the process did before, and it
    writes a table into the working directory. Returns what went wrong, or None. Takes at most `timeout` seconds."""
    with tempfile.TemporaryDirectory() as work:
        said = pathlib.Path(work) / "said.txt"
        process = fork_server().Process(target=run_here, args=(tool, preset, model, npz, out, count, said))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(f"{tool} {preset}", timeout)
        told = said.read_text(errors="replace") if said.exists() else ""
    return told.strip().rsplit("\n", 1)[-1] + "\n\n" + told[-4000:] if process.exitcode else None


@functools.cache
def fork_server():
    """Makes processes in which the incumbents are imported already, which takes longer than most quantizations, and nothing has run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["quark.onnx", "onnxruntime.quantization", "onnx_oracle"])
    return context


def run_here(tool, preset, model, npz, out, count, said):
    os.chdir(said.parent)
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    inputs = {i.name for i in onnx.load(model, load_external_data=False).graph.input}
    feeds = [{k: v for k, v in feed.items() if k in inputs} for feed in samples(npz, count=count)]
    TOOLS[tool](preset, model, feeds, out)


def quantize(tool, preset, model, npz, cache, count=None, timeout=None):
    """The model that `tool` makes of `model` with the calibration data `npz`; raises Unable where it fails, and
    subprocess.TimeoutExpired after `timeout` seconds."""
    model, npz, cache = (pathlib.Path(p).resolve() for p in (model, npz, cache))
    cache.mkdir(parents=True, exist_ok=True)
    stem = cache / f"{model.stem}-{tool}-{re.sub(r'[^A-Za-z0-9+=.-]', '_', preset)}-{key(tool, preset, model, npz, count)}"
    out, failed = pathlib.Path(f"{stem}.onnx"), pathlib.Path(f"{stem}.error")
    if failed.exists():
        raise Unable(failed.read_text())
    if not out.exists():
        partial = pathlib.Path(f"{stem}.partial-{os.getpid()}.onnx")
        if wrong := run_alone(tool, preset, model, npz, partial, count, timeout):
            failed.write_text(wrong)
            raise Unable(wrong)
        partial.rename(out)
    return out


def row(tool, preset, name, models, cache):
    """One line of the table: SQNR of each output, or why there is none."""
    model = models / f"{name}.onnx"
    custom_ops = preset.split(":")[-1] in FLOAT_PRESETS
    try:
        out = quantize(tool, preset, model, models / f"{name}.calib.npz", cache)
        found = sqnr(model, out, models / f"{name}.test.npz", custom_ops)
        cell = ", ".join(f"{k} {v:.2f}" for k, v in found.items())
    except Exception as error:  # also models that are made and do not run
        cell = str(error).splitlines()[0][:110].replace("|", "/")
    return f"| {name} | {preset} | {tool} | {cell} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("cache")
    parser.add_argument("--names", help="default: all that lie in MODELS")
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--tools", default=",".join(TOOLS))
    a = parser.parse_args()
    names = a.names.split(",") if a.names else sorted(p.stem for p in a.models.glob("*.onnx"))
    print("| model | preset | tool | SQNR dB |\n|---|---|---|---|", flush=True)
    for name in names:
        for preset in a.presets.split(","):
            for tool in a.tools.split(","):
                if tool == "quark" or preset.split(":")[-1] in ORT_TYPES:
                    print(row(tool, preset, name, a.models, a.cache), flush=True)


if __name__ == "__main__":
    main()
