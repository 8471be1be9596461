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


def duplicate_nodes():
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["a"]),
        helper.make_node("Reshape", ["x", "t"], ["b"]),
        helper.make_node("Softmax", ["a"], ["c"], axis=1),
        helper.make_node("Softmax", ["b"], ["d"], axis=0),
        helper.make_node("Sub", ["c", "d"], ["y"]),
    ]
    return model(nodes, [ints("s", 3, 2), ints("t", 3, 2)], [("x", [2, 3])], [("y", [3, 2])])


def bias(operator, shape, added, with_bias, **attributes):
    def make():
        inputs = ["x", "w", "b"] if with_bias else ["x", "w"]
        nodes = [helper.make_node(operator, inputs, ["h"], **attributes), helper.make_node("Add", ["h", "k"], ["y"])]
        flat = operator in ("Gemm", "MatMul")
        weights = [weight("w", *shape), weight("b", 6), weight("k", *added)]
        return model(nodes, weights, [("x", [2, 4] if flat else [1, 4, 8, 8])], [("y", [2, 6] if flat else [1, 6, None, None])])

    return make


def normalization(axes, shape, opset=17, twice=False, reciprocal=False, bias=True):
    def make():
        by_input = opset >= 18
        mean = lambda x, y: helper.make_node("ReduceMean", [x, "axes"] if by_input else [x], [y], **({} if by_input else {"axes": axes}))  # noqa: E731
        nodes = [mean("x", "mean"), helper.make_node("Sub", ["x", "mean"], ["d"])]
        if twice:
            nodes += [helper.make_node("Sub", ["x", "mean"], ["d2"]), helper.make_node("Mul", ["d2", "d2"], ["sq"])]
        else:
            nodes += [helper.make_node("Pow", ["d", "two"], ["sq"])]
        nodes += [mean("sq", "var"), helper.make_node("Add", ["var", "eps"], ["ve"]), helper.make_node("Sqrt", ["ve"], ["std"])]
        if reciprocal:
            nodes += [helper.make_node("Reciprocal", ["std"], ["inv"]), helper.make_node("Mul", ["d", "inv"], ["n"])]
        else:
            nodes += [helper.make_node("Div", ["d", "std"], ["n"])]
        nodes += [helper.make_node("Mul", ["n", "scale"], ["m" if bias else "y"])]
        nodes += [helper.make_node("Add", ["m", "bias"], ["y"])] if bias else []
        scalar = lambda name, v: numpy_helper.from_array(np.array(v, np.float32), name)  # noqa: E731
        constants = [scalar("two", 2), scalar("eps", 1e-5), weight("scale", *shape), weight("bias", *shape), ints("axes", *axes)]
        return model(nodes, constants, [("x", [2, 3, 4, 5])], [("y", [2, 3, 4, 5])], opset)

    return make


def gelu():
    scalar = lambda name, v: numpy_helper.from_array(np.array(v, np.float32), name)  # noqa: E731
    nodes = [
        helper.make_node("Mul", ["x", "root"], ["q"]),
        helper.make_node("Erf", ["q"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["s"]),
        helper.make_node("Mul", ["half", "x"], ["h"]),
        helper.make_node("Mul", ["h", "s"], ["y"]),
    ]
    constants = [scalar("root", 0.5**0.5), scalar("one", 1), scalar("half", 0.5)]
    return model(nodes, constants, [("x", [2, 3])], [("y", [2, 3])], 20)


def l2_norm():
    nodes = [
        helper.make_node("ReduceL2", ["x"], ["n"], axes=[1], keepdims=1),
        helper.make_node("Clip", ["n", "eps"], ["c"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Expand", ["c", "s"], ["e"]),
        helper.make_node("Div", ["x", "e"], ["y"]),
    ]
    return model(nodes, [numpy_helper.from_array(np.array(1e-12, np.float32), "eps")], [("x", [2, 3, 4])], [("y", [2, 3, 4])])


def l2_norm_of_squares():
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["q"]),
        helper.make_node("ReduceSum", ["q", "axes"], ["n"], keepdims=1),
        helper.make_node("Max", ["n", "eps"], ["c"]),
        helper.make_node("Sqrt", ["c"], ["r"]),
        helper.make_node("Reciprocal", ["r"], ["i"]),
        helper.make_node("Mul", ["x", "i"], ["y"]),
    ]
    eps = numpy_helper.from_array(np.array(1e-12, np.float32), "eps")
    return model(nodes, [eps, ints("axes", -1)], [("x", [2, 3, 4])], [("y", [2, 3, 4])])


def clip_to_relu():
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    return model([helper.make_node("Clip", ["x", "zero"], ["y"])], [zero], [("x", [2, 3])], [("y", [2, 3])])


def large_pool():
    return model([helper.make_node("GlobalAveragePool", ["x"], ["y"])], [], [("x", [1, 3, 32, 24])], [("y", [1, 3, 1, 1])])


def norm_alone():
    return model([bn("x", "y")], norm(4), [("x", [1, 4, 5, 5])], [("y", [1, 4, 5, 5])])


def functions():
    scaled = helper.make_node("LeakyRelu", ["a"], ["t"])
    scaled.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("local", "inner", ["a"], ["t"], [scaled], [helper.make_opsetid("", 17)], ["slope"])
    call = lambda name, x, y, **a: helper.make_node(name, [x], [y], domain="local", **a)  # noqa: E731
    body = [call("inner", "a", "u", slope=0.25), helper.make_node("Add", ["u", "a"], ["b"])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    outer = helper.make_function("local", "outer", ["a"], ["b"], body, imports)
    made = model([call("outer", "x", "h"), call("outer", "h", "y")], [], [("x", [2, 3])], [("y", [2, 3])])
    made.opset_import.append(helper.make_opsetid("local", 1))
    made.functions.extend([inner, outer])
    return made


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
    "duplicate-nodes": duplicate_nodes,
    "bias-fusion.conv": bias("Conv", (6, 4, 3, 3), (1, 6, 1, 1), False),
    "bias-fusion.conv-with-bias": bias("Conv", (6, 2, 3, 3), (6, 1, 1), True, group=2),
    "bias-fusion.transposed": bias("ConvTranspose", (4, 3, 3, 3), (6, 1, 1), False, group=2),
    "bias-fusion.gemm": bias("Gemm", (4, 6), (6,), True, alpha=0.5),
    "bias-fusion.gemm-row": bias("Gemm", (6, 4), (1, 6), False, transB=1),
    "bias-fusion.matmul": bias("MatMul", (4, 6), (1,), False),
    "layer-norm-fusion": normalization([-1], (5,)),
    "layer-norm-fusion.twice": normalization([2, 3], (4, 5), twice=True),
    "layer-norm-fusion.input": normalization([-1], (5,), opset=18, reciprocal=True, bias=False),
    "instance-norm-fusion": normalization([2, 3], (1, 3, 1, 1)),
    "instance-norm-fusion.plain": normalization([-2, -1], (3, 1, 1), opset=13, twice=True, bias=False),
    "gelu-fusion": gelu,
    "l2-norm-fusion": l2_norm,
    "l2-norm-fusion.squares": l2_norm_of_squares,
    "clip-to-relu": clip_to_relu,
    "split-large-pool": large_pool,
    "batch-norm-to-conv": norm_alone,
    "function-inlining": functions,
    "dead-nodes": dead_nodes,
    "shape-inference": shape_inference,
}


def one(operator, inputs, output, opset, initializers=(), kind=None, outputs=1, shape=(1, 4, 8, 8), **attributes):
    """A model of one operator of an old opset, whose parameters are attributes that became inputs, or the like."""

    def make():
        names = ["y", *(f"y{i}" for i in range(1, outputs))]
        node = helper.make_node(operator, inputs, names, name="n", **attributes)
        made = model([node], list(initializers), [("x", list(shape))], [(n, None) for n in names], opset)
        made.ir_version = 7
        if kind:
            made.graph.output[-1].type.tensor_type.elem_type = kind
        return onnx.shape_inference.infer_shapes(made)

    return make


def floats(name, *values):
    return numpy_helper.from_array(np.array(values, np.float32), name)


# Models of operators that changed between opsets.
OLD = {
    "batch-normalization": one("BatchNormalization", ["x", "bn_s", "bn_b", "bn_m", "bn_v"], None, 8, norm(4)),
    "upsample-7": one("Upsample", ["x"], None, 7, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"),
    "upsample-linear": one("Upsample", ["x"], None, 7, scales=[1.0, 1.0, 2.0, 2.0], mode="linear"),
    "upsample-9": one("Upsample", ["x", "s"], None, 9, [floats("s", 1, 1, 2, 2)]),
    "resize-10": one("Resize", ["x", "s"], None, 10, [floats("s", 1, 1, 1.5, 2.5)], mode="nearest"),
    "resize-10-smaller": one("Resize", ["x", "s"], None, 10, [floats("s", 1, 1, 0.6, 0.5)], mode="nearest"),
    "resize-10-linear": one("Resize", ["x", "s"], None, 10, [floats("s", 1, 1, 0.5, 2)], mode="linear"),
    "slice": one("Slice", ["x"], None, 9, axes=[1, 3], starts=[1, -5], ends=[3, 1000]),
    "slice-all-axes": one("Slice", ["x"], None, 7, starts=[0, 1], ends=[1, 3]),
    "top-k": one("TopK", ["x"], None, 9, kind=TensorProto.INT64, outputs=2, k=3, axis=1),
    "clip": one("Clip", ["x"], None, 10, min=-0.5, max=0.5),
    "clip-above": one("Clip", ["x"], None, 7, max=0.5),
    "clip-open": one("Clip", ["x"], None, 7),
    "pad": one("Pad", ["x"], None, 10, pads=[0, 0, 1, 2, 0, 0, 0, 1], value=2.5),
    "pad-reflect": one("Pad", ["x"], None, 7, pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="reflect"),
    "scatter": one("Scatter", ["x", "i", "u"], None, 9, [ints("i", 1, 0, 2), floats("u", 7, 8, 9)], shape=(5,)),
    "dropout": one("Dropout", ["x"], None, 10, ratio=0.3),
    "squeeze": one("Squeeze", ["x"], None, 11, axes=[0]),
    "squeeze-all": one("Squeeze", ["x"], None, 11),
    "unsqueeze": one("Unsqueeze", ["x"], None, 11, axes=[0, -1]),
    "split": one("Split", ["x"], None, 11, outputs=2, split=[3, 1], axis=1),
    "split-equal": one("Split", ["x"], None, 11, outputs=2, axis=1),
    "softmax": one("Softmax", ["x"], None, 11),
    "softmax-last": one("Softmax", ["x"], None, 11, axis=3),
    "softmax-minus-two": one("Softmax", ["x"], None, 11, axis=-2),
    "log-softmax": one("LogSoftmax", ["x"], None, 7, axis=2),
    "hardmax": one("Hardmax", ["x"], None, 11, axis=2),
    "reduce-sum": one("ReduceSum", ["x"], None, 11, axes=[1, -1], keepdims=0),
    "reduce-mean": one("ReduceMean", ["x"], None, 11, axes=[2, 3]),
    "reduce-max-all": one("ReduceMax", ["x"], None, 11),
    "reduce-l2": one("ReduceL2", ["x"], None, 13, axes=[1]),
    "grid-sample": one("GridSample", ["x", "g"], None, 16, [weight("g", 1, 3, 3, 2)], mode="bilinear"),
    "depth-to-space": one("DepthToSpace", ["x"], None, 10, blocksize=2),
    "flatten": one("Flatten", ["x"], None, 7, axis=2),
    "average-pool": one("AveragePool", ["x"], None, 10, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
}
