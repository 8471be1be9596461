"""Loads checkpoints with SGLang's own model classes, quantization configurations and weight loaders, on a CPU and without its kernels.

    python sglang_load.py CHECKPOINT...        # in the environment that .ci/sglang makes

Prints a line of JSON for each checkpoint: `ok`, and either `error` (what SGLang says), or `missing` (parameters that the checkpoint does not
fill, wholly or in part), `unused` (its tensors that SGLang copies nowhere) and `methods` (how many layers get which of SGLang's methods).

torch is told that there is a GPU of compute capability 9.0, whose memory is that of the CPU. Packages of compiled kernels are names
without code: no product is computed, and what SGLang does to weights after it has loaded them (repacking for a kernel) is not run.
"""

import importlib.abc
import importlib.machinery
import json
import logging
import os
import sys
import tempfile
import types
from unittest.mock import MagicMock

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")

import torch

# Imported before there is a GPU: they would look for its libraries.
import torchvision  # noqa: F401
import transformers  # noqa: F401
import triton  # noqa: F401
from torch.overrides import TorchFunctionMode

CAPABILITY = (9, 0)
MEMORY = 80 << 30
# Kernels and the server. Other packages that are absent must be so: transformers and SGLang ask which there are.
ABSENT = ("aiter", "cuda", "cutlass", "deep_gemm", "flashinfer", "IPython", "pynvml", "setproctitle", "sgl_kernel", "torch_memory_saver",
          "uvicorn")  # fmt: skip
# What checkpoints may leave out: scales of keys and values, for which SGLang takes 1; biases of experts, which are 0; the order of groups, which
# SGLang makes of nothing where the channels are in order.
OPTIONAL = ("k_scale", "v_scale", "w13_bias", "w2_bias", "w13_weight_g_idx", "w2_weight_g_idx", "w13_g_idx_sort_indices",
            "w2_g_idx_sort_indices")  # fmt: skip
# GPTQ's order of groups, which is read only where config.json says that it is not that of the channels.
UNREAD = ("g_idx",)


class Absent(types.ModuleType):
    """A module that is not here: whatever is imported from it does nothing."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, MagicMock(name=f"{self.__name__}.{name}"))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        # Newer than any version that is asked for.
        module.__version__ = "99.0.0"


class Stream:
    """A queue of a GPU's, which nothing is put into."""

    def __init__(self, *_, **__):
        pass


class InMemoryOfCpu(TorchFunctionMode):
    """Puts on the CPU what is asked for on a GPU."""

    def __torch_function__(self, function, kinds, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if keywords.get("device") is not None:
            keywords["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return arguments[0]
        if function is torch.Tensor.to:
            arguments = tuple("cpu" if isinstance(a, (str, torch.device)) else a for a in arguments)
        return function(*arguments, **keywords)


def pretend_gpu():
    properties = types.SimpleNamespace(name="none", major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=MEMORY, multi_processor_count=132,
                                       shared_memory_per_block_optin=232448, is_integrated=False, warp_size=32, gcnArchName="")  # fmt: skip
    gpu = torch.cuda
    gpu.is_available = gpu.is_initialized = lambda: True
    gpu.device_count, gpu.current_device = lambda: 1, lambda: 0
    gpu.get_device_capability, gpu.get_device_name = lambda *_: CAPABILITY, lambda *_: "none"
    gpu.get_device_properties, gpu.mem_get_info = lambda *_: properties, lambda *_: (MEMORY, MEMORY)
    gpu.max_memory_allocated = lambda *_: 0
    gpu.set_device = gpu.synchronize = gpu.empty_cache = lambda *_: None
    gpu.Stream = gpu.Event = Stream
    # Importers ask whether torch was built for CUDA.
    torch.version.cuda = torch.version.cuda or "13.0"


pretend_gpu()
sys.meta_path.append(Finder())
logging.disable(logging.WARNING)

from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from sglang.srt.layers.dp_attention import initialize_dp_attention  # noqa: E402
from sglang.srt.model_loader.loader import DefaultModelLoader, _get_quantization_config, _initialize_model  # noqa: E402
from sglang.srt.model_loader.utils import set_default_torch_dtype  # noqa: E402
from sglang.srt.runtime_context import get_parallel, publish  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from watched import methods, observe  # noqa: E402


def load(checkpoint):
    # `fa3`: what SGLang takes on such a GPU.
    arguments = ServerArgs(model_path=checkpoint, device="cuda", attention_backend="fa3", skip_tokenizer_init=True, disable_radix_cache=True,
                           disable_cuda_graph=True, context_length=64)  # fmt: skip
    arguments.resolve_once()
    publish(arguments, role="scheduler")
    get_parallel().override_permanently(tp_rank=0, pp_rank=0, moe_ep_rank=0, moe_dp_rank=0, moe_tp_rank=0, attn_tp_rank=0, attn_cp_rank=0)
    if not torch.distributed.is_initialized():
        rendezvous = f"file://{tempfile.mkdtemp()}/rendezvous"
        init_distributed_environment(backend="gloo", world_size=1, rank=0, local_rank=0, distributed_init_method=rendezvous)
        initialize_model_parallel(backend="gloo")
    initialize_dp_attention(arguments)
    config, how = ModelConfig.from_server_args(arguments), LoadConfig()
    quantization = _get_quantization_config(config, how)
    with set_default_torch_dtype(config.dtype), torch.device("cpu"):
        model, loader = _initialize_model(config, how, quantization), DefaultModelLoader(how)
        missing, unused = observe(
            model,
            lambda: loader._get_all_weights(config, model),
            lambda weights: DefaultModelLoader.load_weights_only(model, weights, torch.device("cpu")),
            OPTIONAL,
            UNREAD,
        )
    return dict(ok=not missing and not unused, missing=missing, unused=unused, methods=methods(model), dtype=str(config.dtype))


def main():
    for checkpoint in sys.argv[1:]:
        try:
            with InMemoryOfCpu():
                report = load(checkpoint)
        except Exception as error:  # Whatever SGLang raises is its answer.
            report = dict(ok=False, error=f"{type(error).__name__}: {error}")
        print(json.dumps(dict(report, checkpoint=checkpoint)), flush=True)
    # Threads of SGLang's would keep the process.
    os._exit(0)


main()
