"""Networks trained on scikit-learn's digits, each with what one of the algorithms is for, exported from torch.

    python tests/interop/onnx_digits.py DIRECTORY [NAME ...]

writes `NAME.onnx` and the data they share, `digits.calib.npz` and `digits.test.npz` (with the array `label`). What lies there
already is kept. Training takes some seconds; seeds are fixed.
"""

import contextlib
import os
import pathlib
import sys

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

CALIBRATION, TEST = 64, 597
OUTLIER = 20.0  # what stands out in a residual stream whose other channels are about 1
SPREAD = 30.0  # how far apart the channels of one layer are stretched


def pictures():
    """(train, labels, test, labels): 8x8 pictures with values from 0 to 1."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images / 16).astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[:TEST], order[TEST:]
    return x[train], digits.target[train], x[test], digits.target[test]


class Separable(nn.Sequential):
    """Depthwise and pointwise convolutions, each with a norm and ReLU6, as in MobileNet."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6())  # fmt: skip


def relu6():
    """A MobileNet of bounded activations: equalization has to keep the bounds."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(), Separable(16, 24), Separable(24, 32, 2),
        Separable(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))  # fmt: skip


class Block(nn.Module):
    """A block of a transformer, norms before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) * (width // self.heads) ** -0.5
        x = x + self.out((scores.softmax(-1) @ parts[2]).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Sixteen patches of 2x2, two blocks."""

    def __init__(self, width=48):
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, width, 2, 2), nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks, self.norm, self.head = nn.Sequential(Block(width, 4), Block(width, 4)), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


class RootMeanSquare(nn.Module):
    """RMSNorm in its parts, as decoders of transformers compute it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class DecoderBlock(nn.Module):
    """A block of a decoder: causal attention and a gated MLP, without biases."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.first, self.second = heads, RootMeanSquare(width), RootMeanSquare(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        heads = lambda y: y.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)  # noqa: E731
        normed = self.first(x)
        scores = heads(self.q(normed)) @ heads(self.k(normed)).transpose(-1, -2) * (width // self.heads) ** -0.5
        shares = (scores + torch.full((length, length), -1e4).triu(1)).softmax(-1)
        x = x + self.out((shares @ heads(self.v(normed))).transpose(1, 2).reshape(batch, length, width))
        normed = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """Rows of half a picture's width, one after the other; some channels of the stream are far larger than the others, as in large
    language models."""

    def __init__(self, width=48):
        super().__init__()
        self.rows, self.places = nn.Linear(4, width, bias=False), nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.places.data[..., :: width // 3] += OUTLIER
        self.blocks, self.norm = nn.Sequential(DecoderBlock(width, 4), DecoderBlock(width, 4)), RootMeanSquare(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.rows(x.reshape(-1, 16, 4)) + self.places
        return self.head(self.norm(self.blocks(x))[:, -1])


@torch.no_grad()
def stretch(net):
    """Outliers as large language models have them, at the same function: some channels of a norm are large, their weights small."""
    for block in net.blocks:
        for norm, linear in ((block.first, block.qkv), (block.second, block.up)):
            factors = torch.ones(len(norm.weight))
            factors[:: len(factors) // 3] = SPREAD
            norm.weight *= factors
            norm.bias *= factors
            linear.weight /= factors
    return net


# name -> (how it is built, what is done once it is trained, epochs)
NETS = {
    "digits_relu6": (relu6, lambda net: net, 12),
    "digits_transformer": (Transformer, stretch, 25),
    "digits_decoder": (Decoder, lambda net: net, 25),
}


def train(net, epochs):
    x, labels, *_ = pictures()
    x, labels = torch.from_numpy(x), torch.from_numpy(labels)
    steps = epochs * (len(x) // 50)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=steps)
    draw = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=draw)[: len(x) // 50 * 50].split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[chosen]), labels[chosen], label_smoothing=0.05).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def make(name, directory):
    """(model, calibration data, test data)"""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path, calib, test = (directory / n for n in (f"{name}.onnx", "digits.calib.npz", "digits.test.npz"))
    if not test.exists():
        x, _, held_out, labels = pictures()
        np.savez(calib, x=x[:CALIBRATION])
        np.savez(test, x=held_out, label=labels)
    if not path.exists():
        build, finish, epochs = NETS[name]
        torch.manual_seed(0)
        net = finish(train(build(), epochs))
        partial = directory / f"{name}.partial.onnx"
        with contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(net, torch.zeros(1, 1, 8, 8), str(partial), dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
        partial.rename(path)
    return path, calib, test


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or NETS:
        print(*make(name, sys.argv[1]), flush=True)
