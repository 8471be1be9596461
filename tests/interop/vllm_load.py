"""Loads checkpoints with vLLM's own model classes, quantization configurations and weight loaders, on a CPU and without its kernels.

    python vllm_load.py CHECKPOINT...        # in the environment that .ci/vllm makes

Prints a line of JSON for each checkpoint: `ok`, and either `error` (what vLLM says), or `missing` (parameters that the checkpoint does not
fill, wholly or in part), `unused` (its tensors that vLLM copies nowhere) and `methods` (how many layers get which of vLLM's methods).

vLLM is told that there is a GPU of compute capability 9.0, whose parameters lie in the memory of the CPU. Compiled operators are names
without code: no product is computed, and what vLLM does to weights after it has loaded them (repacking for a kernel) is not run.
"""

import importlib.machinery
import json
import os
import sys
import tempfile
import types

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", VLLM_NO_USAGE_STATS="1")

import torch
import vllm.platforms
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

CAPABILITY = 90
# What checkpoints may leave out: scales of attention, for which vLLM takes 1; biases of experts, which are 0; the scales of inputs that
# NVFP4 weights with 16-bit inputs do not have.
OPTIONAL = ("q_scale", "k_scale", "v_scale", "prob_scale", "q_zero_point", "k_zero_point", "v_zero_point", "w13_bias", "w2_bias",
            "w13_input_global_scale", "w2_input_global_scale")  # fmt: skip
# GPTQ's order of groups, which is read only where config.json says that it is not that of the channels.
UNREAD = ("g_idx",)
OPERATORS = ("_C", "_moe_C", "_C_cache_ops", "_rocm_C", "_C_stable_libtorch", "_C_cuda_utils")


class Operators:
    """Compiled operators. Asked whether something is supported, they say yes; the others exist once `is_complete`, since the modules
    that describe operators to torch must not find them while they are imported."""

    is_complete = False

    def __getattr__(self, name):
        if "support" in name:
            return lambda *_, **__: True
        if Operators.is_complete and not name.startswith("__"):
            return Operator()
        raise AttributeError(name)


class Operator:
    """A compiled operator, which computes nothing, and its overloads (`operator.default`)."""

    def __call__(self, *_, **__):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Operator()


class NamedGpu(Platform):
    """A GPU in name alone."""

    _enum, device_name, device_type = PlatformEnum.CUDA, "cuda", "cpu"
    dispatch_key, simple_compile_backend = "CPU", "eager"
    supported_quantization = []

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(CAPABILITY // 10, CAPABILITY % 10)

    @classmethod
    def has_device_capability(cls, capability, device_id=0):
        return CAPABILITY >= (capability if isinstance(capability, int) else capability[0] * 10 + capability[1])

    @classmethod
    def is_device_capability(cls, capability, device_id=0):
        return CAPABILITY == (capability if isinstance(capability, int) else capability[0] * 10 + capability[1])

    @classmethod
    def is_device_capability_family(cls, capability, device_id=0):
        return CAPABILITY // 10 == capability // 10

    @classmethod
    def get_device_name(cls, device_id=0):
        return "none"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 << 30

    @classmethod
    def num_compute_units(cls, device_id=0):
        return 132

    @classmethod
    def check_and_update_config(cls, vllm_config):
        pass

    @classmethod
    def get_attn_backend_cls(cls, *_, **__):
        return f"{__name__}.Attention"

    @classmethod
    def supports_fp8(cls):
        return True

    @classmethod
    def fp8_dtype(cls):
        return torch.float8_e4m3fn

    @classmethod
    def opaque_attention_op(cls):
        return False


class Stream:
    """A queue of a GPU's, which nothing is put into."""

    def __init__(self, *_, **__):
        pass


def absent(name):
    """A module that is compiled, and not here: whatever is imported from it does nothing."""

    def attribute(wanted):
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return lambda *_, **__: None

    module = types.ModuleType(name)
    module.__spec__, module.__path__, module.__getattr__ = importlib.machinery.ModuleSpec(name, None), [], attribute
    sys.modules[name] = module


for name in OPERATORS:
    torch.ops.__dict__[name] = Operators()
for name in ("vllm.vllm_flash_attn", "vllm.vllm_flash_attn.flash_attn_interface"):
    absent(name)
vllm.platforms._current_platform = NamedGpu()
torch.cuda.Stream = torch.cuda.Event = Stream

import vllm.model_executor.models.registry as registry  # noqa: E402

# A process of its own would not know of the GPU.
registry._run_in_subprocess = lambda function: function()

import vllm._custom_ops  # noqa: E402, F401
import vllm.model_executor.layers.activation  # noqa: E402, F401
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import (  # noqa: E402
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl  # noqa: E402
from watched import methods, observe  # noqa: E402


class AttentionWithoutKernels(CPUAttentionBackendImpl):
    """Attention of any kind, latent attention too, that is never computed."""

    def __init__(self, *arguments, **keywords):
        self.kv_cache_dtype = keywords.get("kv_cache_dtype", "auto")


class Attention(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls():
        return AttentionWithoutKernels


def load(checkpoint):
    arguments = EngineArgs(model=checkpoint, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64)
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/rendezvous", 0, "gloo")
        # Mixtures of experts ask for groups that dense models do not.
        destroy_model_parallel()
        initialize_model_parallel(1, 1)
        Operators.is_complete = True
        torch.set_default_dtype(config.model_config.dtype)
        with torch.device("cpu"):
            model = initialize_model(vllm_config=config, model_config=config.model_config)
        loader = DefaultModelLoader(config.load_config)
        missing, unused = observe(model, lambda: loader.get_all_weights(config.model_config, model), model.load_weights, OPTIONAL, UNREAD)
    return dict(ok=not missing and not unused, missing=missing, unused=unused, methods=methods(model), dtype=str(config.model_config.dtype))


def main():
    for checkpoint in sys.argv[1:]:
        try:
            report = load(checkpoint)
        except Exception as error:  # Whatever vLLM raises is its answer.
            report = dict(ok=False, error=f"{type(error).__name__}: {error}")
        print(json.dumps(dict(report, checkpoint=checkpoint)), flush=True)
    # Threads of vLLM's would keep the process.
    os._exit(0)


main()
