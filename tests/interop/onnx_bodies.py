"""Small models with If, Loop and Scan, and in float16 and float64, made node by node, with data: {name: (model, data)}."""

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

SIDE = 16


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def constants(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def weight(rng, dtype=np.float32):
    return (rng.normal(size=(SIDE, SIDE)) * 0.3).astype(dtype)


def branch(rng, name):
    """tanh((h w + b) outer), with a weight of its own and one from around it."""
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["p"], f"{name}_own"),
        helper.make_node("Add", ["p", "b"], ["q"], f"{name}_bias"),
        helper.make_node("MatMul", ["q", "outer"], ["r"], f"{name}_outer"),
        helper.make_node("Tanh", ["r"], ["z"], f"{name}_tanh"),
    ]
    own = constants(w=weight(rng), b=rng.normal(size=SIDE).astype(np.float32))
    return helper.make_graph(nodes, name, [], [value("z", [None, SIDE])], own)


def conditional(rng):
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "greater"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=branch(rng, "then"), else_branch=branch(rng, "else")),
        helper.make_node("MatMul", ["i", "outer"], ["o"], "last"),
    ]
    return nodes, constants(zero=np.float32(0), outer=weight(rng))


def loop(rng):
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["p"], "inside"),
        helper.make_node("Add", ["p", "h"], ["q"], "add"),
        helper.make_node("Tanh", ["q"], ["next"], "tanh"),
        helper.make_node("Identity", ["go"], ["on"], "on"),
    ]
    takes = [value("n", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("s", [4, SIDE])]
    gives = [value("on", [], TensorProto.BOOL), value("next", [4, SIDE])]
    body = helper.make_graph(nodes, "body", takes, gives, constants(w=weight(rng)))
    nodes = [helper.make_node("Loop", ["count", "yes", "h"], ["l"], "loop", body=body), helper.make_node("MatMul", ["l", "w1"], ["o"], "last")]
    return nodes, constants(count=np.int64(3), yes=np.bool_(True), w1=weight(rng))


def scan(rng):
    nodes = [
        helper.make_node("MatMul", ["s", "w"], ["p"], "inside"),
        helper.make_node("Add", ["p", "row"], ["q"], "add"),
        helper.make_node("Tanh", ["q"], ["next"], "tanh"),
        helper.make_node("Identity", ["next"], ["y"], "out"),
    ]
    body = helper.make_graph(
        nodes, "body", [value("s", [SIDE]), value("row", [SIDE])], [value("next", [SIDE]), value("y", [SIDE])], constants(w=weight(rng))
    )
    nodes = [
        helper.make_node("Scan", ["start", "h"], ["end", "ys"], "scan", body=body, num_scan_inputs=1),
        helper.make_node("MatMul", ["ys", "w1"], ["o"], "last"),
    ]
    return nodes, constants(start=np.zeros(SIDE, np.float32), w1=weight(rng))


def model(nodes, initializers, kind=TensorProto.FLOAT):
    graph = helper.make_graph(nodes, "graph", [value("x", [4, SIDE], kind)], [value("o", [4, SIDE], kind)], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(made, full_check=True)
    return made


def with_body(build):
    """relu(x w0) before what `build` makes of h."""
    rng = np.random.default_rng(5)
    first = [helper.make_node("MatMul", ["x", "w0"], ["h0"], "first"), helper.make_node("Relu", ["h0"], ["h"], "relu")]
    nodes, own = build(rng)
    return model(first + nodes, constants(w0=weight(rng)) + own)


def of_type(kind, dtype):
    """relu(x w0 + b) w1 in a float type."""
    rng = np.random.default_rng(6)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h0"], "first"),
        helper.make_node("Add", ["h0", "b"], ["h1"], "bias"),
        helper.make_node("Relu", ["h1"], ["h"], "relu"),
        helper.make_node("MatMul", ["h", "w1"], ["o"], "last"),
    ]
    own = constants(w0=weight(rng, dtype), b=rng.normal(size=SIDE).astype(dtype), w1=weight(rng, dtype))
    return model(nodes, own, kind)


def data():
    return {"x": np.random.default_rng(7).normal(size=(32, 4, SIDE)).astype(np.float32)}


BODIES = {"if": lambda: with_body(conditional), "loop": lambda: with_body(loop), "scan": lambda: with_body(scan)}
TYPES = {
    "float16": lambda: of_type(TensorProto.FLOAT16, np.float16),
    "float64": lambda: of_type(TensorProto.DOUBLE, np.float64),
}
