"""What the interfaces for ONNX graphs share: models in memory, readers of calibration data, names."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from kvant._errors import KvantWarning, missing_extra, usage_error
from kvant.compat._shared import escaped

if TYPE_CHECKING:
    import onnx

# Products, whose second input is a weight and whose third is a bias.
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Normalizations, whose second input multiplies and whose third is a bias.
NORMALIZATIONS = ("InstanceNormalization", "LayerNormalization")
# Operators whose constants are quantized like activations.
_OPERANDS = ("Add", "Concat", "Div", "Gather", "GatherElements", "Max", "Min", "Mul", "Sub", "Where")
# Operators that only move values, which are quantized where their input is.
_MOVES = (
    *("AveragePool", "Clip", "Flatten", "MaxPool", "Relu", "Reshape", "Resize", "Slice", "Squeeze", "TopK"),
    *("Transpose", "Unsqueeze"),
)
# Operators that are folded into others or vanish.
_FOLDED = ("BatchNormalization", "Dropout", "Identity")
# Above this size the message of a graph cannot hold its own weights.
_LARGEST_MESSAGE = 1_900_000_000


@contextlib.contextmanager
def model_file(model: str | os.PathLike[str] | onnx.ModelProto) -> Iterator[Path]:
    """The file of a model; one in memory is written to a private temporary directory."""
    if isinstance(model, str | os.PathLike):
        yield Path(model)
        return
    import tempfile

    import onnx

    with tempfile.TemporaryDirectory(prefix="kvant-") as directory:
        path = Path(directory) / "model.onnx"
        is_large = model.ByteSize() > _LARGEST_MESSAGE
        onnx.save_model(model, str(path), save_as_external_data=is_large)
        if is_large:
            # Saving took the weights out of the caller's model.
            onnx.external_data_helper.load_external_data_for_model(model, directory)
        yield path


class Graph:
    """The nodes and constants of a model, without the values of its weights."""

    def __init__(self, path: Path) -> None:
        try:
            import onnx
        except ModuleNotFoundError as error:
            raise missing_extra(error, "this interface", "onnx") from error
        try:
            model = onnx.load(str(path), load_external_data=False)
        except FileNotFoundError:
            raise usage_error(f"{path} does not exist", "give the file of an ONNX graph") from None
        self.nodes = list(model.graph.node)
        self.op_types = {node.op_type for node in self.nodes}
        self.names = {node.name for node in self.nodes}
        self.inputs = list(model.graph.input)
        self.needed = {value.name for value in self.inputs} - {tensor.name for tensor in model.graph.initializer}
        floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
        self.constants = {tensor.name for tensor in model.graph.initializer}
        self.float_constants = {tensor.name for tensor in model.graph.initializer if tensor.data_type in floats}

    def weights(self, nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
        """The weights of products by name, with the type of the operator."""
        return {
            node.input[1]: node.op_type
            for node in nodes
            if node.op_type in PRODUCTS and len(node.input) > 1 and node.input[1] in self.float_constants
        }

    def factors(self, nodes: Sequence[onnx.NodeProto]) -> list[str]:
        """The constants that normalizations multiply by."""
        found = [node.input[1] for node in nodes if node.op_type in NORMALIZATIONS and len(node.input) > 1]
        return [name for name in found if name in self.float_constants]

    def operands(self, nodes: Sequence[onnx.NodeProto]) -> list[str]:
        """Constants that are quantized like activations."""
        found = [name for node in nodes if node.op_type in _OPERANDS for name in node.input]
        found += [node.input[0] for node in nodes if node.op_type in PRODUCTS]
        return sorted(self.float_constants.intersection(found) - set(self.weights(self.nodes)))

    def between(self, starts: Sequence[str], ends: Sequence[str]) -> set[str]:
        """The names of the nodes on every path between two sets of nodes."""
        after, before = set(starts), set(ends)
        written = {name for node in self.nodes if node.name in after for name in node.output}
        for node in self.nodes:
            if written.intersection(node.input):
                after.add(node.name)
                written.update(node.output)
        read = {name for node in self.nodes if node.name in before for name in node.input}
        for node in reversed(self.nodes):
            if read.intersection(node.output):
                before.add(node.name)
                read.update(node.input)
        return after & before

    def moves_in_float(self, nodes: Sequence[onnx.NodeProto]) -> list[str]:
        """The names of nodes that only move values which no quantized node before them reads or writes.

        Kvant gives them pairs too, other tools only on request.
        """
        quantized: set[str] = set()
        found = []
        chosen = {id(node) for node in nodes}
        for node in self.nodes:
            moves = node.op_type in _MOVES or (node.op_type == "Gather" and node.input[0] not in self.constants)
            if node.op_type in _FOLDED or (id(node) in chosen and moves):
                if node.input[0] in quantized:
                    quantized.update(node.output)
                elif node.op_type not in _FOLDED:
                    found.append(node.name)
            elif id(node) in chosen:
                quantized.update(node.input, node.output)
        if "" in found:
            message = "nodes without names that only move values are quantized: name them to leave them in float"
            warnings.warn(message, KvantWarning, stacklevel=4)
        return [name for name in found if name]


def codes_words(symmetric: bool) -> str:
    """The words of an override for codes as onnxruntime has them."""
    return "symmetric" if symmetric else "asymmetric:full-range"


def dynamic_overrides(
    graph: Graph, nodes: Sequence[onnx.NodeProto], weight: str, symmetric: bool, per_channel: bool
) -> dict[str, str]:
    """Overrides for weights whose inputs get their scales when the model runs: those of convolutions have one scale.

    Only products have quantized constants there, those in bodies of If, Loop and Scan included.
    """
    symmetry = codes_words(symmetric)
    made = {"*": f"{weight}:{'channel' if per_channel else 'tensor'}:{symmetry}"}
    for name, kind in graph.weights(nodes).items():
        if kind == "Conv":
            made[escaped(name)] = f"{weight}:tensor:{symmetry}"
    return made


def batches(reader: Any, graph: Graph | None = None) -> list[dict[str, numpy.ndarray]]:
    """Everything that a reader of calibration data gives.

    Args:
        reader: The reader.
        graph: The graph that the data are for.

    Raises:
        UsageError: It gives nothing, or batches with different inputs, or with other inputs than the graph has.
    """
    if not callable(getattr(reader, "get_next", None)):
        raise usage_error(f"a {type(reader).__name__} is no CalibrationDataReader", "give an object with get_next()")
    found: list[dict[str, numpy.ndarray]] = []
    while batch := reader.get_next():
        found.append({name: numpy.asarray(value) for name, value in batch.items()})
    if not found:
        raise usage_error("the calibration_data_reader gives no data", "rewind it, or give one that has data")
    if any(set(batch) != set(found[0]) for batch in found):
        raise usage_error("the batches of the calibration_data_reader have different inputs", "give all inputs in each")
    if graph is not None:
        _check_inputs(set(found[0]), graph)
    return found


def _check_inputs(given: set[str], graph: Graph) -> None:
    """Refuses names that are not those of a graph's inputs."""
    known = {value.name for value in graph.inputs}
    problems = [f"has no input {name!r}" for name in sorted(given - known)]
    problems += [f"needs the input {name!r}, which is missing" for name in sorted(graph.needed - given)]
    if problems:
        raise usage_error(
            f"the calibration_data_reader does not fit: the graph {', and '.join(problems)}",
            f"give arrays by the inputs of the graph: {', '.join(sorted(graph.needed))}",
        )


def samples(found: Sequence[Mapping[str, numpy.ndarray]]) -> dict[str, numpy.ndarray]:
    """Batches as `data` of `kvant.quantize`, which feeds each of them as it is."""
    made: dict[str, numpy.ndarray] = {}
    for name in found[0]:
        arrays = [batch[name] for batch in found]
        if len({array.shape for array in arrays}) == 1:
            made[name] = numpy.stack(arrays)
        else:
            made.update({f"{name}_{n}": array[numpy.newaxis] for n, array in enumerate(arrays)})
    return made
