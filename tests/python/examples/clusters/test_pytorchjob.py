"""examples/clusters/pytorchjob.yaml: what its containers run is known to torchrun and to train.py."""

import math
from pathlib import Path

import options
import pytest
import yaml
from torch.distributed.run import get_args_parser

MANIFEST = yaml.safe_load((Path(__file__).parents[4] / "examples" / "clusters" / "pytorchjob.yaml").read_text())


def test_the_pods_run_as_many_processes_as_the_flags_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = MANIFEST["spec"]["pytorchReplicaSpecs"]["Worker"]
    [container] = worker["template"]["spec"]["containers"]
    program, *words = [*container["command"], *container["args"]]
    launch = get_args_parser().parse_args(words)
    assert (program, launch.training_script) == ("torchrun", "examples/gpt/train.py")
    count = worker["replicas"] * int(launch.nproc_per_node)
    monkeypatch.setenv("WORLD_SIZE", str(count))
    session = options.session(options.parse(launch.training_script_args))
    assert math.prod((session.job.dp, session.job.fs, session.job.tp)) == count == 16
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(launch.nproc_per_node)


def test_the_policy_has_all_pods_meet_and_a_pod_that_is_started_again_may_join() -> None:
    policy, worker = MANIFEST["spec"]["elasticPolicy"], MANIFEST["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (MANIFEST["apiVersion"], MANIFEST["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert policy["rdzvBackend"] == "c10d"
    assert policy["minReplicas"] == policy["maxReplicas"] == worker["replicas"]
    pod = worker["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]


def test_checkpoints_lie_on_the_volume_that_all_pods_mount() -> None:
    spec = MANIFEST["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [container] = spec["containers"]
    run = Path(container["args"][container["args"].index("--run") + 1])
    [claimed] = [volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    [mount] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == claimed]
    assert Path(mount) in run.parents
    assert "--resume" in container["args"]
