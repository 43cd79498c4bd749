"""Files that start training on clusters: their syntax, and the commands and settings in them."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess

import pytest
import yaml

import jaxrl_stack
from jaxrl_stack.cli.experiment import experiment
from jaxrl_stack.cli.parser import make_parser
from jaxrl_stack.utils.resources import misfit

FOLDER = pathlib.Path(jaxrl_stack.__file__).parent / "examples" / "clusters"


def config_of(command: str):
    """The config that a ``jaxrl train`` command line makes."""
    arguments = shlex.split(command)
    return experiment(make_parser().parse_args(arguments[1:]), lambda config: None)[0]


def test_the_slurm_script_is_valid_and_its_run_fits_the_nodes_that_it_asks_for():
    script = (FOLDER / "slurm.sh").read_text()
    subprocess.run(["bash", "-n", FOLDER / "slurm.sh"], check=True)
    asked = dict(line.removeprefix("#SBATCH --").split("=") for line in script.splitlines() if "#SBATCH --" in line)
    assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ray' in script  # else each task gets one CPU
    command = script[script.index("jaxrl train") :].replace("\\\n", " ")
    nodes = [{"CPU": float(asked["cpus-per-task"]), "GPU": 1.0}] * int(asked["nodes"])
    assert misfit(config_of(command), nodes) is None


def test_the_kuberay_file_is_valid_and_its_run_fits_the_pods_that_it_asks_for():
    job = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    assert (job["kind"], job["apiVersion"]) == ("RayJob", "ray.io/v1")
    cluster = job["spec"]["rayClusterSpec"]
    nodes = [{"CPU": float(cluster["headGroupSpec"]["rayStartParams"]["num-cpus"])}]
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        custom = json.loads(json.loads(group["rayStartParams"].get("resources", '"{}"')))
        gpus = {"GPU": float(limits["nvidia.com/gpu"])} if "nvidia.com/gpu" in limits else {}
        nodes += [{"CPU": float(limits["cpu"]), **gpus, **custom}] * group["replicas"]
    config = config_of(job["spec"]["entrypoint"])
    assert misfit(config, nodes) is None and config.custom_resources_per_learner == {"learner": 1}


@pytest.mark.parametrize("name", ["slurm.sh", "kuberay.yaml"])
def test_they_join_the_cluster_and_keep_checkpoints_in_a_shared_folder(name):
    text = (FOLDER / name).read_text()
    for option in ("--address auto", "--checkpoint-freq", "--results-dir", "restart_failed_env_runners=True"):
        assert option in text
