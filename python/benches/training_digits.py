"""Accuracy of small convolutional networks on scikit-learn's digits, with int4 weights and int8 activations.

Before and after training, means over five seeds. One network has full convolutions, one separable ones, whose few
weights per filter are harder to quantize.

OMP_NUM_THREADS=1 python benches/training_digits.py
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import kvant.torch as kt

SCHEME = "int4:channel+int8:tensor!static"
SEEDS = 5


def full() -> list[nn.Module]:
    """Two convolutions."""
    return [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.ReLU()]


def separable() -> list[nn.Module]:
    """Three depthwise convolutions, each with a pointwise one."""
    layers: list[nn.Module] = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU6()]
    for stride in (1, 2, 1):
        layers += [
            nn.Conv2d(16, 16, 3, padding=1, stride=stride, groups=16),
            nn.ReLU6(),
            nn.Conv2d(16, 16, 1),
            nn.ReLU6(),
        ]
    return layers


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float) -> None:
    """Trains all parameters with Adam."""
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def accuracies(layers: Callable[[], list[nn.Module]], seed: int) -> list[float]:
    """Float, rounded to nearest, GPTQ, and trained for an epoch after rounding to nearest."""
    torch.manual_seed(seed)
    data = load_digits()
    order = torch.randperm(len(data.images))
    images = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    labels = torch.tensor(data.target)[order]
    test_images, test_labels = images[1200:], labels[1200:]
    images, labels = images[:1200], labels[:1200]
    network = nn.Sequential(*layers(), nn.Flatten(), nn.Linear(256, 10))
    train(network, images, labels, epochs=20, rate=3e-3)
    network.eval()

    @torch.no_grad()
    def accuracy(network: nn.Module) -> float:
        return float((network(test_images).argmax(dim=1) == test_labels).float().mean())

    calibration = images[:512].split(128)
    nearest, gptq, trained = (copy.deepcopy(network) for _ in range(3))
    kt.quantize_(nearest, SCHEME, calibration)
    kt.quantize_(gptq, SCHEME, calibration, algorithm="gptq")
    kt.quantize_(trained, SCHEME, calibration, trainable=True)
    train(trained, images, labels, epochs=1, rate=1e-3)
    return [accuracy(network), accuracy(nearest), accuracy(gptq), accuracy(kt.freeze(trained))]


def main() -> None:
    """Prints a row for each network."""
    print("| network | float | nearest | GPTQ | nearest, then trained |\n|---|---|---|---|---|")
    for layers in (full, separable):
        found = torch.tensor([accuracies(layers, seed) for seed in range(SEEDS)]).mean(dim=0)
        print(f"| {layers.__name__} | " + " | ".join(f"{100 * value:.2f}" for value in found.tolist()) + " |")


main()
