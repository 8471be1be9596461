"""What a quantized ONNX model does to its tensors, whatever operators say it: {name: Quantized}.

Names are those of the float graph. Understood are QuantizeLinear/DequantizeLinear of ai.onnx and com.microsoft, Quark's
Extended* and block operators, and Casts through bfloat16 or float16 and back.
"""

import dataclasses

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPE_NAMES = {TensorProto.BFLOAT16: "bf16", TensorProto.FLOAT16: "f16"}
QUANTIZE = ("QuantizeLinear", "ExtendedQuantizeLinear")
DEQUANTIZE = ("DequantizeLinear", "ExtendedDequantizeLinear")
BLOCKS = ("BFPQuantizeDequantize", "MXQuantizeDequantize")
SUFFIXES = ("_QuantizeLinear_Input", "_quantized")


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """The type as `int8`, `bf16`, or the block operator's attributes; scale and zero point flattened; integers of a constant."""

    type: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    codes: np.ndarray | None = None


NONE = np.empty(0)


def plain(name):
    """The float graph's name of a tensor that quantization has renamed."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def block_type(node):
    """`BFPQuantizeDequantize(axis=1, ...)` with all attributes in order."""
    text = (f"{k}={v.decode() if isinstance(v, bytes) else v}" for k, v in sorted(attributes(node).items()))
    return f"{node.op_type}({', '.join(text)})"


class Graph:
    """The graph of a model file with its constants at hand, nodes that make constants included."""

    def __init__(self, path):
        self.model = onnx.load(path)
        self.constants = {i.name: i for i in self.model.graph.initializer}
        self.readers = {}
        for node in self.model.graph.node:
            if node.op_type == "Constant" and "value" in attributes(node):
                self.constants[node.output[0]] = attributes(node)["value"]
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        # Rows of tables of codes, by what holds them.
        self.tables = {node.output[0]: node.input[0] for node in self.model.graph.node if node.op_type == "Gather" and node.input[0] in self.constants}

    def stored(self, node):
        """The constant that a node reads, or reads rows of."""
        return self.tables.get(node.input[0], node.input[0])

    def array(self, name):
        return numpy_helper.to_array(self.constants[name])

    def type_of(self, name):
        kind = self.constants[name].data_type
        return TYPE_NAMES.get(kind) or str(self.array(name).dtype)

    def parameters(self, node):
        """Type, scale, zero point and axis of a quantizing or dequantizing node."""
        scale = self.array(node.input[1]).astype(np.float64).ravel()
        axis = attributes(node).get("axis", 1) if scale.size > 1 else None
        if len(node.input) < 3 or not node.input[2]:
            return "uint8", scale, np.zeros_like(scale), axis
        zero_point = self.array(node.input[2]).astype(np.float64).ravel()
        return self.type_of(node.input[2]), scale, zero_point, axis


def codes_of(graph, node):
    """The entry of a node that dequantizes stored integers."""
    integers = graph.array(graph.stored(node))
    _, scale, zero_point, axis = graph.parameters(node)
    return Quantized(str(integers.dtype), scale, zero_point, axis, integers)


def cast_type(graph, node):
    """The 16-bit type that a Cast and the Cast behind it round to."""
    kind = TYPE_NAMES.get(attributes(node)["to"])
    back = any(r.op_type == "Cast" and attributes(r)["to"] == TensorProto.FLOAT for r in graph.readers.get(node.output[0], []))
    return kind if back else None


def stored_type(graph, node):
    """The 16-bit type of a constant that a Cast makes floats of."""
    stored = graph.constants.get(node.input[0])
    return TYPE_NAMES.get(stored.data_type) if stored is not None and attributes(node)["to"] == TensorProto.FLOAT else None


def entry(graph, node):
    """What `node` quantizes, or None."""
    if node.op_type in DEQUANTIZE and graph.stored(node) in graph.constants:
        return codes_of(graph, node)
    if node.op_type in QUANTIZE:
        return Quantized(*graph.parameters(node))
    if node.op_type in BLOCKS:
        return Quantized(block_type(node), NONE, NONE)
    if node.op_type == "Cast" and (kind := cast_type(graph, node) or stored_type(graph, node)):
        return Quantized(kind, np.ones(1), np.zeros(1))
    return None


def read(path):
    graph = Graph(path)
    entries = ((node, entry(graph, node)) for node in graph.model.graph.node)
    return {plain(graph.stored(node)): found for node, found in entries if found}


def domains(path):
    """Every domain that nodes of the model name, the standard one as ''."""
    return {"" if n.domain == "ai.onnx" else n.domain for n in onnx.load(path, load_external_data=False).graph.node}
