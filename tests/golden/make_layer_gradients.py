"""Losses of layers and their gradients by weight and bias, as torch's autograd finds them.

    python make_layer_gradients.py

writes `crates/onnx/tests/data/layer_gradients.json`. The loss is the mean over batch and positions of the squared errors summed over output
channels, both sides behind the activation function.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

FUNCTIONS = {
    "None": lambda y: y,
    "Relu": F.relu,
    "LeakyRelu": lambda y: F.leaky_relu(y, 0.1),
    "PRelu": None,  # with slopes
    "Clip": lambda y: y.clamp(-0.5, 1.5),
    "Sigmoid": torch.sigmoid,
    "HardSigmoid": lambda y: (0.2 * y + 0.5).clamp(0, 1),
    "HardSwish": F.hardswish,
    "Tanh": torch.tanh,
    "Gelu": F.gelu,
    "GeluTanh": lambda y: F.gelu(y, approximate="tanh"),
}
CONV = {1: F.conv1d, 2: F.conv2d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d}
# operator, attributes of ONNX, input, weight
LAYERS = [
    ("Conv", {}, [1, 3, 4, 5], [4, 3, 1, 1]),
    ("Conv", {"pads": [1, 1, 1, 1], "strides": [2, 1]}, [2, 2, 5, 6], [3, 2, 3, 3]),
    ("Conv", {"pads": [1, 1, 1, 1], "group": 4}, [1, 4, 5, 4], [4, 1, 3, 3]),
    ("Conv", {"dilations": [2, 1], "group": 2}, [1, 4, 6, 4], [4, 2, 2, 3]),
    ("Conv", {"pads": [2, 2], "strides": [2]}, [1, 3, 9], [4, 3, 3]),
    ("ConvTranspose", {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}, [1, 3, 3, 4], [3, 2, 3, 3]),
    ("ConvTranspose", {"strides": [2, 1], "group": 2, "dilations": [1, 2]}, [1, 4, 3, 3], [4, 2, 2, 2]),
    ("Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0}, [7, 6], [4, 6]),
    ("MatMul", {}, [2, 3, 6], [6, 4]),
]


def outputs(kind, attributes, x, w, b):
    if kind == "MatMul":
        return x @ w
    if kind == "Gemm":
        return attributes["alpha"] * (x @ w.T) + attributes["beta"] * b
    axes = x.ndim - 2
    named = dict(stride=attributes.get("strides", 1), dilation=attributes.get("dilations", 1), groups=attributes.get("group", 1))
    padding = attributes.get("pads", [0] * axes)[:axes]
    if kind == "Conv":
        return CONV[axes](x, w, b, padding=padding, **named)
    return TRANSPOSED[axes](x, w, b, padding=padding, output_padding=attributes.get("output_padding", 0), **named)


def channels(kind, attributes, w):
    return {"ConvTranspose": w[1] * attributes.get("group", 1), "MatMul": w[-1]}.get(kind, w[0])


def rounded(tensor):
    return [round(v, 7) for v in tensor.detach().flatten().tolist()]


def case(layer, function, seed):
    kind, attributes, of_input, of_weight = layer
    torch.manual_seed(seed)
    draw = lambda shape: (torch.randn(shape) * 100).round() / 100  # noqa: E731
    x, w, b = draw(of_input), (draw(of_weight) / 2).requires_grad_(), draw([channels(kind, attributes, of_weight)]).requires_grad_()
    y = outputs(kind, attributes, x, w, b)
    axis = 1 if kind.startswith("Conv") else -1
    slopes = draw([b.numel()]) / 5
    spread = slopes.reshape([-1] + [1] * (y.ndim - 2) if axis == 1 else [-1])
    f = FUNCTIONS[function] or (lambda v: torch.where(v > 0, v, spread * v))
    target = draw(y.shape)
    loss = ((f(y) - f(target)) ** 2).sum(axis).mean()
    loss.backward()
    made = dict(op=kind, attributes=attributes, function=function, slopes=rounded(slopes), input_shape=of_input, input=rounded(x))
    made |= dict(weight_shape=of_weight, weight=rounded(w), target_shape=list(y.shape), target=rounded(target), loss=loss.item())
    made |= dict(weight_gradient=rounded(w.grad))
    return made if kind == "MatMul" else made | dict(bias=rounded(b), bias_gradient=rounded(b.grad))


def main():
    names = list(FUNCTIONS)
    # Every layer without a function, and every layer with some: all functions come up.
    cases = [case(layer, "None", i) for i, layer in enumerate(LAYERS)]
    cases += [case(LAYERS[i % len(LAYERS)], name, 100 + i) for i, name in enumerate(names[1:] * 2)]
    out = pathlib.Path(__file__).parents[2] / "crates/onnx/tests/data/layer_gradients.json"
    out.write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
