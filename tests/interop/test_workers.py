"""Files for schedulers: Kubernetes' schemas take the Job, and a YAML reader the task of SkyPilot. The workers that they start make one model."""

import os
import subprocess

import kubernetes_validate
import pytest
import yaml

from conftest import BINARIES
from test_forward import trained


@pytest.fixture(scope="module")
def jobs(kvant, module_path):
    root = module_path("jobs")
    done = kvant("plan", trained("nano_llama"), "-s", "W4A16", "--override", "*=int4:g32", "-o", root / "out", "--workers", 3, "--write-jobs", root / "jobs")
    assert done.returncode == 0, done.stderr
    return root / "jobs"


def test_kubernetes_takes_the_job(jobs):
    job = yaml.safe_load((jobs / "kubernetes.yaml").read_text())
    kubernetes_validate.validate(job, "1.37", strict=True)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert job["spec"]["completions"] == 3
    assert container["command"][:2] == ["kvant", "quantize"] and container["command"][-2:] == ["--worker", "auto/3"]


def test_skypilot_file_is_yaml(jobs):
    task = yaml.safe_load((jobs / "skypilot.yaml").read_text())
    assert task["num_nodes"] == 3 and task["run"].rstrip().endswith("--worker auto/3")


def test_workers_that_schedulers_start_make_one_model(jobs, kvant, tmp_path):
    """The commands of the Job, as Kubernetes runs them: in any order, each with its index."""
    container = yaml.safe_load((jobs / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    for index in (2, 0, 1):
        environment = {"PATH": f"{BINARIES}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": str(index)}
        subprocess.run(container["command"], cwd=container["workingDir"], env=environment, check=True, capture_output=True)
    out = jobs.parent / "out"
    done = kvant("quantize", trained("nano_llama"), "-s", "W4A16", "--override", "*=int4:g32", "-o", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert all((out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes() for name in names)
