"""The files of deploy/, as far as they can be checked without a cloud."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tidemill
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
BIN = Path(sys.executable).parent
NODES = {"g5.2xlarge": (40, "A10G", 1), "p4de.24xlarge": (4, "A100", 8)}


def test_deploy_run_file_resolves():
    run = tidemill.resolve(str(DEPLOY / "sd2.toml"))
    samples = [phase["steps"] * run["train"]["global_batch"] for phase in run["train"]["phase"]]
    assert samples == [1_126_400_000, 1_740_800_000]
    assert run["engine"]["ray"]["env"]["FI_PROVIDER"] == "efa"


def test_cluster_file_is_valid_for_ray():
    cluster = yaml.safe_load((DEPLOY / "aws-cluster.yaml").read_text())
    validate_config(prepare_config(cluster))
    kinds = {kind["node_config"]["InstanceType"]: kind for kind in cluster["available_node_types"].values()}
    for instance, (most, accelerator, gpus) in NODES.items():
        kind = kinds[instance]
        assert kind["max_workers"] == most
        assert kind["resources"]["GPU"] == gpus
        assert f"accelerator_type:{accelerator}" in kind["resources"]
        assert "--gpus=all" in kind["docker"]["worker_run_options"]
    # Options for all nodes also apply to the head, which has neither GPUs nor InfiniBand.
    for_all = " ".join(cluster["docker"]["run_options"] + cluster["docker"].get("head_run_options", []))
    assert "gpus" not in for_all
    assert "infiniband" not in for_all
    assert "--device=/dev/infiniband" in kinds["p4de.24xlarge"]["docker"]["worker_run_options"]
    cards = kinds["p4de.24xlarge"]["node_config"]["NetworkInterfaces"]
    assert [card["NetworkCardIndex"] for card in cards] == [0, 1, 2, 3]
    assert {card["InterfaceType"] for card in cards} == {"efa"}


def test_rayjob_has_nodes_for_its_commands():
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    for group in groups:
        pod = group["template"]["spec"]
        most, accelerator, gpus = NODES[pod["nodeSelector"]["node.kubernetes.io/instance-type"]]
        # The shell removes the quotes before `ray start --resources=...`.
        (resources,) = shlex.split(group["rayStartParams"]["resources"])
        assert json.loads(resources) == {f"accelerator_type:{accelerator}": 1}
        (container,) = pod["containers"]
        assert group["maxReplicas"] == most
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert len(groups) == len(NODES)


def list_commands():
    """The commands that the files start, as lists of arguments."""
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())["spec"]["entrypoint"]
    cluster = re.search(r"ray exec \S+ '(.*)'", (DEPLOY / "aws-cluster.yaml").read_text())[1]
    image = " ".join(yaml.safe_load(re.search(r"CMD (.*)", (DEPLOY / "Dockerfile").read_text())[1]))
    slurm = re.search(r"-m (tidemill .*)", (DEPLOY / "slurm.sh").read_text())[1]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["tidemill"]["command"]
    found = [part for line in (job, cluster, image, slurm, compose) for part in line.split("&&")]
    return [shlex.split(command) for command in found]


@pytest.mark.parametrize("command", list_commands(), ids=" ".join)
def test_deploy_commands_are_accepted_by_command_line(command):
    assert command[0] == "tidemill"
    # With an added unknown flag, the command line must refuse only that flag.
    done = subprocess.run(
        [sys.executable, "-m", *command, "--no-such-flag"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    refused = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(refused) == 1
    assert re.search(
        r"(unrecognized arguments:|unexpected argument) '?--no-such-flag'?( found)?$", refused[0]
    )


def test_dockerfile_has_no_findings_and_our_versions():
    dockerfile = DEPLOY / "Dockerfile"
    subprocess.run([BIN / "hadolint", dockerfile], check=True)
    lock = dict(
        line.split("==")
        for line in (DEPLOY.parent / "requirements.lock").read_text().splitlines()
        if "==" in line
    )
    text = dockerfile.read_text()
    assert f"rayproject/ray:{lock['ray']}-" in text
    for package in ("ray", "aiohttp"):
        (version,) = re.findall(rf"\b{package}(?:\[[a-z,]+\])?==([\d.]+)", text)
        assert version == lock[package], package


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.compose-spec", "deploy/compose.yaml"),
        ("vendor.github-workflows", ".github/workflows/ci.yml"),
    ],
)
def test_files_are_valid_by_schema(schema, file):
    check = [BIN / "check-jsonschema", "--builtin-schema", schema, DEPLOY.parent / file]
    subprocess.run(check, check=True, timeout=60)


def test_compose_mounts_files_that_exist():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    files = [path for path in mounted if path.startswith("./")]
    assert files
    assert all((DEPLOY / path).is_file() for path in files)
    scraped = yaml.safe_load((DEPLOY / "monitoring/prometheus.yaml").read_text())["scrape_configs"]
    (target,) = scraped[0]["static_configs"][0]["targets"]
    name, port = target.split(":")
    assert f"0.0.0.0:{port}" in services[name]["command"]


def test_slurm_script_is_valid_bash():
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=True)
