"""Decoders as graphs in the forms of other exporters: Optimum's of a checkpoint, with a cache, masks and positions, and a small one with
the operators and inputs of onnxruntime-genai, whose weights are random."""

import numpy as np
import onnx
import torch
import transformers
from onnx import TensorProto, helper


class Wrapped(torch.nn.Module):
    """input_ids, attention_mask, position_ids and a flat cache to logits and the longer cache: Optimum's signature."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = transformers.DynamicCache()
        for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(key, value, layer)
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        layers = out.past_key_values.layers
        return (out.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def export(directory, target, dtype=torch.float32):
    """The graph of the checkpoint, with the names and the dynamic axes that Optimum gives it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
    config = model.config
    heads, width = config.num_key_value_heads, config.head_dim
    past = torch.zeros(2, heads, 3, width, dtype=dtype)
    arguments = (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64), torch.arange(3, 8).repeat(2, 1))
    names = ["input_ids", "attention_mask", "position_ids"]
    axes = {name: {0: "batch_size", 1: "sequence_length"} for name in names}
    axes["attention_mask"][1] = "past_sequence_length + sequence_length"
    outputs = ["logits"]
    for layer in range(config.num_hidden_layers):
        for part in ("key", "value"):
            names.append(f"past_key_values.{layer}.{part}")
            axes[names[-1]] = {0: "batch_size", 2: "past_sequence_length"}
            outputs.append(f"present.{layer}.{part}")
            axes[outputs[-1]] = {0: "batch_size", 2: "past_sequence_length + sequence_length"}
    axes["logits"] = {0: "batch_size", 1: "sequence_length"}
    arguments += (past,) * (2 * config.num_hidden_layers)
    with torch.no_grad():
        torch.onnx.export(
            Wrapped(model), arguments, str(target), input_names=names, output_names=outputs, dynamic_axes=axes, opset_version=17, dynamo=False
        )  # fmt: skip
    return target


def genai(target, vocabulary, kind=TensorProto.FLOAT16, seed=0, operator="GroupQueryAttention"):
    """One block with an attention of com.microsoft, which lengthens the cache itself. GroupQueryAttention rotates queries and keys."""
    heads, width, longest = 4, 16, 256
    key_heads = 2 if operator == "GroupQueryAttention" else heads
    hidden, rng = heads * width, np.random.default_rng(seed)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    angles = np.arange(longest)[:, None] / 10000 ** (np.arange(width // 2) * 2 / width)
    constants = {
        "embedding": rng.normal(size=(vocabulary, hidden)),
        "query_key_value": rng.normal(size=(hidden, (heads + 2 * key_heads) * width)) * 0.2,
        "output": rng.normal(size=(hidden, hidden)) * 0.2,
        "head": rng.normal(size=(hidden, vocabulary)) * 0.2,
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "bias": np.zeros((heads + 2 * key_heads) * width),
    }
    initializers = [onnx.numpy_helper.from_array(array.astype(dtype), name) for name, array in constants.items()]
    integers = {"one": np.int64([1]), "length": np.int64(1)}
    initializers += [onnx.numpy_helper.from_array(array, name) for name, array in integers.items()]
    node = helper.make_node
    nodes = [
        node("Gather", ["embedding", "input_ids"], ["x"]),
        *attention(operator, heads, key_heads),
        node("MatMul", ["attended", "output"], ["branch"]),
        node("Add", ["x", "branch"], ["y"]),
        node("MatMul", ["y", "head"], ["logits"]),
    ]
    value = helper.make_tensor_value_info
    # Attention has keys and values in one tensor.
    parts = {".0": [2]} if operator == "Attention" else {".0.key": [], ".0.value": []}
    cache = lambda name, length: [
        value(name + part, kind, [*first, "batch_size", key_heads, length, width]) for part, first in parts.items()
    ]
    inputs = [
        value("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        value("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
        *cache("past_key_values", "past_sequence_length"),
    ]
    outputs = [value("logits", kind, ["batch_size", "sequence_length", vocabulary]), *cache("present", "total_sequence_length")]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(target))
    return target


def attention(operator, heads, key_heads):
    """The nodes from `x` to `attended`, behind a cache."""
    node = helper.make_node
    past, present = (tuple(f"{name}.0.{part}" for part in ("key", "value")) for name in ("past_key_values", "present"))
    packed = node("MatMul", ["x", "query_key_value"], ["packed"])
    if operator == "Attention":
        inputs = ["x", "query_key_value", "bias", "", "past_key_values.0"]
        return [node(operator, inputs, ["attended", "present.0"], domain="com.microsoft", num_heads=heads, unidirectional=1)]
    if operator == "MultiHeadAttention":
        split = node("Split", ["packed"], ["query", "key", "value"], axis=2)
        inputs = ["query", "key", "value", "", "", "", *past]
        return [packed, split, node(operator, inputs, ["attended", *present], domain="com.microsoft", num_heads=heads, unidirectional=1)]
    return [
        node("ReduceSum", ["attention_mask", "one"], ["tokens"], keepdims=1),
        node("Sub", ["tokens", "one"], ["before"]),
        node("Cast", ["before"], ["seqlens_k"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["shape"]),
        node("Gather", ["shape", "length"], ["total"], axis=0),
        node("Cast", ["total"], ["total_length"], to=TensorProto.INT32),
        packed,
        node(
            operator, ["packed", "", "", *past, "seqlens_k", "total_length", "cos", "sin"], ["attended", *present],
            domain="com.microsoft", num_heads=heads, kv_num_heads=key_heads, do_rotary=1,
        ),
    ]  # fmt: skip
