"""Generated graphs, data and comparisons for the tests of interfaces for ONNX graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


def _values(seed: int) -> Callable[..., numpy.ndarray]:
    generator = numpy.random.default_rng(seed)
    return lambda *shape: (generator.standard_normal(shape) * 0.4).astype("float32")


def _model(
    nodes: list[Any], constants: dict[str, Any], shape: list[Any], output: list[Any], opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(numpy.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def convolutions() -> onnx.ModelProto:
    """Two convolutions, a sum with the input of the second, pooling and a classifier."""
    value = _values(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2"),
        helper.make_node("Add", ["c2", "r1"], ["a"], "add"),
        helper.make_node("Relu", ["a"], ["r2"], "relu2"),
        helper.make_node("MaxPool", ["r2"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["gap"], "gap"),
        helper.make_node("Reshape", ["gap", "shape"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "fc", transB=1),
    ]
    constants = {"w1": value(8, 3, 3, 3), "b1": value(8), "w2": value(8, 8, 1, 1), "w3": value(5, 8), "b3": value(5)}
    constants["shape"] = numpy.array([0, 8], "int64")
    return _model(nodes, constants, ["N", 3, 8, 8], ["N", 5])


def normalized() -> onnx.ModelProto:
    """A convolution, BatchNormalization and Relu, before a residual convolution."""
    value = _values(1)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"], "norm"),
        helper.make_node("Relu", ["n1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2"),
        helper.make_node("Add", ["c2", "r1"], ["y"], "add"),
    ]
    constants = {"w1": value(8, 3, 3, 3), "b1": value(8), "w2": value(8, 8, 1, 1), "b2": value(8)}
    constants.update(g=value(8) + 1, b=value(8), m=value(8), v=abs(value(8)) + 0.5)
    return _model(nodes, constants, ["N", 3, 8, 8], ["N", 8, 8, 8])


def products() -> onnx.ModelProto:
    """MatMul and Gemm, with constants in sums."""
    value = _values(2)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "mm1"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], "add1"),
        helper.make_node("Relu", ["a1"], ["r1"], "relu1"),
        helper.make_node("Gemm", ["r1", "w2", "b2"], ["g1"], "gemm"),
        helper.make_node("Sigmoid", ["g1"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["s", "g1"], ["u"], "mul"),
        helper.make_node("MatMul", ["u", "w3"], ["y"], "mm3"),
    ]
    constants = {"w1": value(6, 16), "b1": value(16), "w2": value(16, 12), "b2": value(12), "w3": value(12, 4)}
    return _model(nodes, constants, ["N", 6], ["N", 4])


def attention() -> onnx.ModelProto:
    """An attention block with a residual sum."""
    value = _values(3)
    nodes = []
    for letter in "qkv":
        axes = [0, 2, 3, 1] if letter == "k" else [0, 2, 1, 3]
        nodes += [
            helper.make_node("MatMul", ["x", f"w{letter}"], [f"m{letter}"], f"mm_{letter}"),
            helper.make_node("Add", [f"m{letter}", f"b{letter}"], [f"a{letter}"], f"add_{letter}"),
            helper.make_node("Reshape", [f"a{letter}", "heads"], [f"r{letter}"], f"reshape_{letter}"),
            helper.make_node("Transpose", [f"r{letter}"], [f"t{letter}"], f"transpose_{letter}", perm=axes),
        ]
    nodes += [
        helper.make_node("MatMul", ["tq", "tk"], ["scores"], "mm_scores"),
        helper.make_node("Mul", ["scores", "factor"], ["scaled"], "scale"),
        helper.make_node("Softmax", ["scaled"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "tv"], ["o"], "mm_values"),
        helper.make_node("Transpose", ["o"], ["ot"], "transpose_o", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["ot", "rows"], ["om"], "reshape_o"),
        helper.make_node("MatMul", ["om", "wo"], ["out"], "mm_o"),
        helper.make_node("Add", ["out", "x"], ["y"], "residual"),
    ]
    constants: dict[str, Any] = {f"w{letter}": value(8, 8) for letter in "qkvo"}
    constants.update({f"b{letter}": value(8) for letter in "qkv"})
    constants.update(heads=numpy.array([0, 0, 2, 4], "int64"), rows=numpy.array([0, 0, 8], "int64"))
    constants["factor"] = numpy.array(0.5, "float32")
    return _model(nodes, constants, ["N", 5, 8], ["N", 5, 8])


def conditional() -> onnx.ModelProto:
    """A product before an If with a product in each branch."""
    value = _values(4)

    def branch(number: int) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["h", f"wb{number}"], [f"y{number}"], f"mm_branch{number}")
        output = helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, ["N", 4])
        weight = numpy_helper.from_array(value(6, 4), f"wb{number}")
        return helper.make_graph([node], f"branch{number}", [], [output], [weight])

    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "mm1"),
        helper.make_node("ReduceSum", ["h"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "greater"),
        helper.make_node("If", ["c"], ["y"], "", then_branch=branch(0), else_branch=branch(1)),
    ]
    return _model(nodes, {"w1": value(6, 6), "zero": numpy.array(0, "float32")}, ["N", 6], ["N", 4])


NETS = {"convolutions": convolutions, "products": products, "attention": attention}


class Reader:
    """Batches of random inputs."""

    def __init__(self, model: onnx.ModelProto, count: int = 4, rows: int = 1) -> None:
        generator = numpy.random.default_rng(5)
        shape = [axis.dim_value or rows for axis in model.graph.input[0].type.tensor_type.shape.dim]
        self.batches = [{"x": generator.standard_normal(shape).astype("float32")} for _ in range(count)]
        self.rewind()

    def rewind(self) -> None:
        """Starts again."""
        self.remaining = iter(self.batches)

    def get_next(self) -> dict[str, numpy.ndarray] | None:
        """The next batch."""
        return next(self.remaining, None)


def constants_of(model: onnx.ModelProto) -> dict[str, numpy.ndarray]:
    """The initializers of a model by their names."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def differences(expected: onnx.ModelProto, made: onnx.ModelProto) -> list[str]:
    """Names of initializers that only one model has, or whose scales, zero points or codes differ."""
    left, right = constants_of(expected), constants_of(made)
    found = sorted(set(left) ^ set(right))
    for name in sorted(set(left) & set(right)):
        a, b = left[name].ravel(), right[name].ravel()
        if a.dtype != b.dtype or a.size != b.size:
            found.append(name)
        # Scales of activations follow from sums whose order depends on the engine's optimizations, and codes of int32
        # biases, which may have more digits than a float, from these scales.
        elif not numpy.allclose(a, b, rtol=1e-6 if a.dtype.kind == "f" or a.dtype == "int32" else 0, atol=0):
            found.append(name)
    return found
