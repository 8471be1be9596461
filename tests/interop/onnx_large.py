"""Writes models whose weights lie in external data: a chain of MatMul and Gemm of any size, streamed to disk.

    python tests/interop/onnx_large.py PATH.onnx [--gigabytes 3] [--width 4096]

One layer's weight is in memory at a time. Each layer but the last is followed by Relu; MatMul (no bias) and Gemm (bias)
alternate. Weights keep the size of activations. PATH.calib.npz gets four samples. `externalise` rewrites a small model so.
"""

import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper

ALIGNMENT = 4096


def external(name, shape, location, offset, length):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def append(stream, name, array):
    """Writes `array` at the next aligned offset; the tensor that refers to it."""
    stream.seek(-(-stream.tell() // ALIGNMENT) * ALIGNMENT)
    offset = stream.tell()
    array.tofile(stream)
    return external(name, array.shape, pathlib.Path(stream.name).name, offset, array.nbytes)


def layer(rng, index, width, stream):
    """Nodes and initializers of layer `index`, from tensor `t{index}` to `t{index + 1}`."""
    source, target, raw = f"t{index}", f"t{index + 1}", f"z{index}"
    weight = rng.standard_normal((width, width), np.float32) * np.float32(np.sqrt(2 / width))
    tensors = [append(stream, f"w{index}", weight)]
    if index % 2:
        tensors.append(append(stream, f"b{index}", rng.standard_normal(width, np.float32) * np.float32(0.1)))
        node = helper.make_node("Gemm", [source, f"w{index}", f"b{index}"], [raw], f"gemm{index}", transB=1)
    else:
        node = helper.make_node("MatMul", [source, f"w{index}"], [raw], f"matmul{index}")
    return [node, helper.make_node("Relu", [raw], [target], f"relu{index}")], tensors


def write_chain(path, gigabytes, width=4096, seed=0):
    """A chain whose weights take at least `gigabytes` * 1e9 bytes, at `path` and `path`.data."""
    path, rng = pathlib.Path(path), np.random.default_rng(seed)
    layers = int(-(-gigabytes * 1e9 // (4 * width * width)))
    nodes, tensors = [], []
    with open(f"{path}.data", "wb") as stream:
        for index in range(layers):
            new_nodes, new_tensors = layer(rng, index, width, stream)
            nodes += new_nodes
            tensors += new_tensors
    nodes.pop()  # no Relu behind the last layer
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width]) for n in ("t0", nodes[-1].output[0])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    samples = rng.standard_normal((4, width), np.float32)
    np.savez(path.with_suffix(".calib.npz"), t0=samples)
    return path


def externalise(source, target):
    """The model `source` with every initializer in the one file `target`.data."""
    model = onnx.load(source)
    onnx.save(model, target, save_as_external_data=True, location=f"{pathlib.Path(target).name}.data", size_threshold=0)
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--width", type=int, default=4096)
    a = parser.parse_args()
    print(write_chain(a.path, a.gigabytes, a.width))
