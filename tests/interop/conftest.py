"""Finds the kvant binary and the models, and runs each (model, scheme) once in kvant and once in the oracle.

    $KVANT_BINARIES  the directory of the binaries; default target/release of this repository
    $KVANT_MODELS    a directory of the trained small models; default tests/models, then ../shared/models
    $KVANT_KEEP      set: what tests write is kept, in pytest's temporary directory
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import time

# torch's bf16 products end in an illegal instruction where the processor names AMX and the system does not grant it;
# kvant asks before it uses AMX. oneDNN reads this when torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Tables are not wrapped: what tests look for in them stands in one line.
os.environ["COLUMNS"] = "10000"

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

HERE = pathlib.Path(__file__).parent
REPO = HERE.parents[1]
sys.path.insert(0, str(HERE))

import models  # noqa: E402

BINARIES = pathlib.Path(os.environ.get("KVANT_BINARIES", REPO / "target" / "release"))

torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    # Processes that run tests for another have no terminal.
    if config.pluginmanager.has_plugin("terminalreporter"):
        config.get_terminal_writer().fullwidth = 140


# What takes minutes: started last, one of them would keep one process busy while the others have nothing to do.
LONGEST = ("test_onnx_models.py", "test_sglang.py", "test_families.py", "test_hybrids.py", "test_quark_layout.py", "test_onnx_layouts.py",
           "test_vllm.py", "test_gguf.py")  # fmt: skip


def pytest_runtest_setup():
    # CI ends a run that takes too long without a word of what it has found.
    if time.time() > float(os.environ.get("KVANT_TESTS_END", "inf")):
        pytest.skip("the time for tests is over")


def pytest_collection_modifyitems(items):
    # The other files begin at another one for each commit: whatever is left when the time is over is not always the same.
    others = sorted({item.path.name for item in items} - {*LONGEST})
    first = int(os.environ.get("KVANT_TESTS_FIRST", "0")) % max(len(others), 1)
    order = [*LONGEST, *others[first:], *others[:first]]
    items.sort(key=lambda item: order.index(item.path.name))


transformers.utils.logging.disable_progress_bar()


def example(name):
    """The binary of an example, without which the test is skipped."""
    found = BINARIES / "examples" / name
    return found if found.exists() else pytest.skip(f"{found} is missing: cargo build --release --examples, or set $KVANT_BINARIES")


@pytest.fixture(scope="session")
def kvant():
    """Runs kvant: kvant("quantize", model, "--scheme", ...) -> CompletedProcess."""
    binary = BINARIES / "kvant"
    if not binary.exists():
        pytest.exit(f"{binary} is missing: cargo build --release, or set $KVANT_BINARIES", returncode=2)
    return lambda *arguments: subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True, timeout=300)


def quantize_anyway(kvant, model, out, *options):
    """Quantizes, also in a format that no known loader takes, which Kvant refuses or leaves for another one otherwise."""
    done = kvant("quantize", model, *options, "-o", out)
    if "no known loader takes" in done.stderr:
        done = kvant("quantize", model, *options, "--no-verify", "--overwrite", "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def empty(directory):
    """Removes what is in it, not itself: another test must not get the same path, by which results are kept."""
    if "KVANT_KEEP" not in os.environ:
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture(autouse=True)
def emptied(request):
    """A disk does not hold all that all tests write."""
    directory = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if directory:
        empty(directory)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory):
    """module_path(name) -> a new directory, emptied once the module's tests are done."""
    made = []

    def make(name):
        made.append(tmp_path_factory.mktemp(name))
        return made[-1]

    yield make
    for directory in made:
        empty(directory)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """model_dir(name) -> directory; a trained model that is not at hand skips the test."""
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def find(name):
        if name not in models.SHARED:
            return models.generate(name, root)
        found = models.find_shared(name, REPO, os.environ.get("KVANT_MODELS"))
        return found or pytest.skip(f"{name} is not at hand")

    return find


@pytest.fixture(scope="session")
def quantized(kvant, model_dir, tmp_path_factory):
    """quantized(model, scheme, *options) -> output directory of kvant, made once."""
    root = tmp_path_factory.mktemp("kvant")

    @functools.cache
    def run(model, scheme, *options):
        out = root / "-".join([model, scheme, *options]).replace("/", "_")
        return quantize_anyway(kvant, model_dir(model), out, "--scheme", scheme, *options)

    return run


@pytest.fixture(scope="session")
def reference(model_dir, tmp_path_factory):
    """reference(model, scheme) -> directory of the incumbent's in-memory export, made once."""
    import quark_oracle

    root = tmp_path_factory.mktemp("quark")

    @functools.cache
    def run(model, scheme):
        return quark_oracle.export(model_dir(model), scheme, root / f"{model}-{scheme}")

    return run


@pytest.fixture(scope="session")
def frozen(model_dir):
    """frozen(model, scheme) -> the incumbent's in-memory dequantized weights by module."""
    import quark_oracle

    return functools.cache(lambda model, scheme: quark_oracle.frozen_weights(model_dir(model), scheme))


@pytest.fixture(scope="session")
def onnx_work(tmp_path_factory):
    """Where exported ONNX models and the incumbents' results lie, of all processes that run tests: $KVANT_ONNX keeps them from run to run."""
    if kept := os.environ.get("KVANT_ONNX"):
        return pathlib.Path(kept)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return tmp_path_factory.getbasetemp().parent / "onnx"
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="session")
def onnx_model(onnx_work):
    """onnx_model(name) -> path of a float model of onnx_models.py, data beside it."""
    import onnx_models

    return lambda name: onnx_models.make(name, onnx_work / "models") or pytest.skip(f"{name} needs {onnx_models.MODELS[name].needs}")


@pytest.fixture(scope="session")
def incumbent(onnx_work):
    """incumbent(tool, preset, model, data) -> path, made once; raises onnx_oracle.Unable."""
    import onnx_oracle

    return lambda tool, preset, model, data: onnx_oracle.quantize(tool, preset, model, data, onnx_work / "oracle")


@pytest.fixture(scope="session")
def kvant_onnx(kvant):
    """kvant_onnx(model, preset, data, out, *options) -> out, made once."""
    import onnxruntime

    library = next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if library:
        os.environ.setdefault("ORT_DYLIB_PATH", str(library))

    @functools.cache
    def run(model, preset, data, out, *options):
        done = kvant("quantize", model, "--preset", preset, "--data", data, "-o", out, *options)
        assert done.returncode == 0, done.stderr
        return out

    return run
