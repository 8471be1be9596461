"""Small ONNX models, each named after the pass that must find something in it (what follows a dot tells them apart)."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(11)


def weight(name, *shape):
    return numpy_helper.from_array(RANDOM.standard_normal(shape).astype(np.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def norm(channels, prefix="bn"):
    positive = numpy_helper.from_array(RANDOM.uniform(0.5, 2, channels).astype(np.float32), f"{prefix}_v")
    return [weight(f"{prefix}_s", channels), weight(f"{prefix}_b", channels), weight(f"{prefix}_m", channels), positive]


def bn(source, target, prefix="bn"):
    return helper.make_node("BatchNormalization", [source, *(f"{prefix}_{p}" for p in "sbmv")], [target], name=f"bn_{target}")


def model(nodes, initializers, inputs, outputs, opset=17):
    make = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    graph = helper.make_graph(
        nodes, "g", [make(*i) for i in inputs], [make(*o) for o in outputs], initializer=initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def remove_initializers_from_inputs():
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], [weight("w", 3)], [("x", [2, 3])], [("y", [2, 3])])
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    return made


def constant_folding():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "zero"], ["u"]),
        helper.make_node("Concat", ["u", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("Sqrt", ["c"], ["root"]),
        helper.make_node("Div", ["wt", "root"], ["v"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    i = numpy_helper.from_array(np.array(0, np.int64), "i")
    c = numpy_helper.from_array(np.array(3.0, np.float32), "c")
    constants = [i, ints("zero", 0), ints("rest", -1), weight("w", 5, 12), c]
    return model(nodes, constants, [("x", [2, 3, 4])], [("y", [2, 5])])


def identity():
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Dropout", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["c"], to=1),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 1]),
        helper.make_node("Pad", ["e", "pads"], ["f"]),
        helper.make_node("Slice", ["f", "from", "to"], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("Identity", ["h"], ["y"]),
    ]
    constants = [ints("shape", 2, 3), ints("pads", 0, 0, 0, 0), ints("from", 0), ints("to", 100)]
    return model(nodes, constants, [("x", [2, 3])], [("y", [2, 3])])


def folding_behind(operator, shape, **attributes):
    def make():
        nodes = [helper.make_node(operator, ["x", "w", "b"], ["h"], **attributes), bn("h", "y")]
        space = [1, 4, 8, 8] if operator != "Gemm" else [2, 4]
        result = [1, 6, None, None] if operator != "Gemm" else [2, 6]
        return model(nodes, [weight("w", *shape), weight("b", 6), *norm(6)], [("x", space)], [("y", result)])

    return make


def folding_before():
    nodes = [bn("x", "h"), helper.make_node("Conv", ["h", "w"], ["y"], group=2)]
    return model(nodes, [weight("w", 6, 2, 3, 3), *norm(4)], [("x", [1, 4, 8, 8])], [("y", [1, 6, 6, 6])])


def folding_before_gemm():
    nodes = [bn("x", "h"), helper.make_node("Gemm", ["h", "w", "b"], ["y"], transB=1)]
    return model(nodes, [weight("w", 6, 4), weight("b", 1, 6), *norm(4)], [("x", [2, 4])], [("y", [2, 6])])


def matmul_add(*shape):
    def make():
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["b", "h"], ["y"])]
        return model(nodes, [weight("w", 4, 6), weight("b", 6)], [("x", [*shape, 4])], [("y", [*shape, 6])])

    return make


def reduce_mean():
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[-1, 2], keepdims=1)
    return model([node], [], [("x", [1, 3, 5, 5])], [("y", [1, 3, 1, 1])])


def split():
    node = helper.make_node("Split", ["x", "lengths"], ["a", "b"], axis=1)
    return model([node], [ints("lengths", 1, 4)], [("x", [2, 5])], [("a", [2, 1]), ("b", [2, 4])])


def shared_bias():
    nodes = [helper.make_node("Conv", [source, "w", "b"], [target]) for source, target in [("x", "h"), ("h", "y")]]
    return model(nodes, [weight("w", 4, 4, 1, 1), weight("b", 4)], [("x", [1, 4, 3, 3])], [("y", [1, 4, 3, 3])])


def dead_nodes():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "w"], ["z"])]
    return model(nodes, [weight("w", 3)], [("x", [2, 3])], [("y", [2, 3])])


def shape_inference():
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]), helper.make_node("Relu", ["h"], ["y"])]
    return model(nodes, [weight("w", 6, 4, 3, 3)], [("x", [1, 4, 9, 9])], [("y", [1, 6, 5, 5])])


MODELS = {
    "remove-initializers-from-inputs": remove_initializers_from_inputs,
    "constant-folding": constant_folding,
    "identity": identity,
    "batch-norm-folding.conv": folding_behind("Conv", (6, 4, 3, 3), pads=[1, 1, 1, 1]),
    "batch-norm-folding.group": folding_behind("Conv", (6, 2, 3, 3), group=2),
    "batch-norm-folding.transposed": folding_behind("ConvTranspose", (4, 6, 3, 3), strides=[2, 2]),
    "batch-norm-folding.transposed-group": folding_behind("ConvTranspose", (4, 3, 3, 3), group=2),
    "batch-norm-folding.gemm": folding_behind("Gemm", (4, 6)),
    "batch-norm-folding.gemm-transposed": folding_behind("Gemm", (6, 4), transB=1),
    "batch-norm-folding.before": folding_before,
    "batch-norm-folding.before-gemm": folding_before_gemm,
    "matmul-add-to-gemm.3d": matmul_add(2, 3),
    "matmul-add-to-gemm.2d": matmul_add(3),
    "reduce-mean-to-global-average-pool": reduce_mean,
    "split-to-slice": split,
    "copy-shared-bias": shared_bias,
    "dead-nodes": dead_nodes,
    "shape-inference": shape_inference,
}
