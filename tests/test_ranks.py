"""Training of several ranks over Gloo: results do not depend on their number, and refusals agree."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tidemill
from helpers import run_output, training
from safetensors.torch import load_file


def check_validations(ours, theirs, tolerance):
    found, expected = (
        [line for line in run_output.read_metrics(output) if "validation_loss" in line]
        for output in (ours, theirs)
    )
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [5, 10]
    for name in ("validation_loss", "validation_ema_loss"):
        np.testing.assert_allclose(
            *([line[name] for line in lines] for lines in (found, expected)), rtol=tolerance
        )
    assert all(line["validation_rows"] == 20 for line in found)


def check_metrics(lines, world, sharding):
    """Checks the fields of metrics other than the loss."""
    assert [line["step"] for line in lines] == list(range(1, 11))
    for line in lines:
        assert line["learning_rate"] == 1e-3
        assert line["grad_norm"] > 0
        assert line["images_per_second"] > 0
        assert 0 <= line["data_wait"] <= 1
        for kind, time in line["communication"].items():
            # Weights are gathered after the previous step, or, if they are sharded, during each step.
            if kind == "weights" and (sharding == "none" or (sharding != "full_shard" and line["step"] == 1)):
                assert time == {"busy": None, "exposed": 0}
            else:
                assert time["busy"] > 0
                assert 0 <= time["exposed"] <= time["busy"]
        # Nothing is computed while ranks ask each other, so all of this time is exposed.
        assert line["communication"]["ranks"]["exposed"] == line["communication"]["ranks"]["busy"]
        assert len(line["memory_mib"]) == world
        assert min(line["memory_mib"]) > 50
        assert line["gpu_memory_mib"] is None
        # The checkpoint is written while training continues.
        assert line["checkpoint"] in ([0] if line["step"] <= 5 else [0, 5])
    # Nothing is computed after the last gradients of a backward pass, so part of this is exposed.
    assert sum(line["communication"]["gradients"]["exposed"] for line in lines) > 0


@pytest.fixture(scope="module")
def single(dataset, tmp_path_factory):
    """The run of one rank, with which others are compared."""
    output = tmp_path_factory.mktemp("single")
    training.train_to_end(output, dataset, **UNEVEN, **validation(dataset))
    return output


def validation(dataset):
    """Settings for validation on 20 rows every five steps."""
    return {"train.validation": {"every": 5, "rows": 20, "dataset": str(dataset)}}


UNEVEN = training.UNEVEN_BATCH


@pytest.mark.parametrize(
    ("world", "nodes", "settings"),
    [
        (3, None, {"train.micro_batch": 1, "train.bucket_bytes": "100 KiB", "checkpoint.writers": "first"}),
        (4, 2, {"train.sharding": "hybrid_shard", "checkpoint.writers": "node"}),
        (
            4,
            2,
            {"train.sharding": "full_shard", "train.bucket_bytes": "100 KiB", "checkpoint.writers": "node"},
        ),
        # One rank has three micro-batches, the others two.
        (
            3,
            None,
            {"train.sharding": "full_shard", "train.micro_batch": 1, "train.gradient_checkpointing": True},
        ),
        (3, [2, 1], {"train.gradient_checkpointing": True, "train.bucket_bytes": "1 MiB"}),
        (2, None, {"train.sharding": "none", "train.micro_batch": 2}),
        (3, None, {"train.sharding": "none", "train.reduce_precision": "bf16"}),
        (2, None, {"train.reduce_precision": "bf16", "train.moment_precision": "bf16"}),
    ],
)
def test_training_is_the_same_for_any_number_of_ranks(world, nodes, settings, single, dataset, tmp_path):
    settings = {**UNEVEN, **validation(dataset), **settings}
    log = training.train_to_end(tmp_path, dataset, ranks=world, nodes=nodes, **settings)
    assert re.search(rf"each of {world} ranks sends [\d.]+ MiB of gradients and [\d.]+ \w+ of weights", log)
    check_metrics(run_output.read_metrics(tmp_path), world, settings.get("train.sharding"))
    rounded = "bf16" in (settings.get("train.reduce_precision"), settings.get("train.moment_precision"))
    np.testing.assert_allclose(
        run_output.read_losses(tmp_path), run_output.read_losses(single), rtol=1e-3 if rounded else 1e-5
    )
    check_validations(tmp_path, single, 1e-3 if rounded else 1e-5)
    ours, theirs, before = (
        run_output.read_state(tmp_path, 10),
        run_output.read_state(single, 10),
        run_output.read_state(single, 5),
    )
    for name in ("master", "ema"):
        worst = np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()
        of_update = np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name] - before[name])
        print(f"{world} ranks, {settings}: {name} differs by {worst:.1e}, {of_update:.1e} of the update")
        assert worst <= (1e-3 if rounded else 1e-5)
    shards = list((tmp_path / "checkpoints/step-00000010").rglob("*.safetensors"))
    writers = {"first": 1, "node": 2, "all": world}
    assert len(shards) == writers[settings.get("checkpoint.writers", "all")]
    log = training.train_to_end(tmp_path, dataset, **{**UNEVEN, "train.eps": 1e-8})
    assert "resuming after step 10" in log, log
    assert "train.eps is 1e-8" in log, log


def test_damaged_shard_falls_back_to_previous_checkpoint(dataset, tmp_path):
    training.train_to_end(tmp_path, dataset, ranks=2, **UNEVEN)
    (shard,) = (tmp_path / "checkpoints/step-00000010").rglob("rank-1-of-2.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    longer = training.phase(12)
    log = training.train_to_end(tmp_path, dataset, ranks=3, **UNEVEN, **longer)
    (message,) = re.findall(r".*rank-1-of-2\.safetensors.*", log)
    assert "trying the checkpoint before it" in message
    assert log.count("resuming after step 5") == 1, log
    lines = run_output.read_metrics(tmp_path)
    assert len(lines) == 12
    assert [line["checkpoint"] for line in lines[5:10]] == [5] * 5


def test_recipe_in_docs_reads_checkpoint(single):
    docs = Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md"
    *_, code = re.findall(r"```python\n(.*?)```", docs.read_text(), re.DOTALL)
    code = code.replace('"runs/mine/checkpoints"', repr(str(single / "checkpoints"))).replace(
        "00001000", "00000010"
    )
    found = {}
    exec(code, found)
    flat = np.concatenate([weights.ravel() for weights in found["weights"].values()])
    assert np.array_equal(flat, run_output.read_state(single, 10)["ema"])
    assert found["weights"]["conv_in.weight"].ndim == 4


def test_export_uses_averaged_weights_unless_no_ema(single, tmp_path):
    arguments = training.train_arguments(single, {})[3:]
    state = run_output.read_state(single, 10)
    for name, flags in [("ema", []), ("master", ["--no-ema"])]:
        assert tidemill.main(["export", *arguments, "--to", str(tmp_path / name), *flags]) == 0
        exported = load_file(tmp_path / name / "unet" / "diffusion_pytorch_model.safetensors")
        parameters = json.loads((single / "checkpoints/step-00000010/commit.json").read_text())["parameters"]
        flat = np.concatenate([exported[p["name"]].numpy().ravel() for p in parameters])
        assert np.array_equal(flat, state[name]), name
        assert not np.array_equal(state["ema"], state["master"])


def test_default_adamw_differs_little_between_rank_counts(dataset, tmp_path):
    found = []
    for world in (1, 3):
        output = tmp_path / str(world)
        training.train_to_end(output, dataset, ranks=world, **{**UNEVEN, "train.eps": 1e-8})
        found.append(run_output.read_state(output, 10)["master"])
        before = run_output.read_state(output, 5)["master"]
    of_update = np.linalg.norm(found[0] - found[1]) / np.linalg.norm(found[1] - before)
    print(f"difference / update: {of_update:.1e}")
    assert of_update <= 1e-2


@pytest.mark.parametrize(("action", "factor"), [("skip", 1.0001), ("rollback", 1.05)])
def test_ranks_handle_loss_spikes_alike(action, factor, dataset, tmp_path):
    spike = {"factor": factor, "window": 2, "action": action}
    settings = {**UNEVEN, "train.spike": spike, "checkpoint.every": 100}
    found, samples = [], []
    for world in (1, 3):
        output = tmp_path / str(world)
        # Both runs roll back to the end of the first part. Otherwise the speed of the disk
        # decides which checkpoint is the last one.
        parts = [training.phase(steps) for steps in (8, 10)]
        log = "".join(
            training.train_to_end(output, dataset, ranks=world, **{**settings, **part}) for part in parts
        )
        found.append(re.findall(r"step (\d+) is (?:skipped|rolled back)", log))
        lines = (output / "anomalies.jsonl").read_text().splitlines()
        samples.append([(line["step"], sorted(line["samples"])) for line in map(json.loads, lines)])
        back = re.findall(
            r"rolled back to step 8 of the last checkpoint; \d+ steps and [\d.]+ s are lost", log
        )
        assert len(back) == (len(found[-1]) if action == "rollback" else 0), log
    assert found[0] == found[1] != []
    assert samples[0] == samples[1]
    assert all(len(ids) == 7 for _, ids in samples[0])
    np.testing.assert_allclose(*(run_output.read_losses(tmp_path / world) for world in ("1", "3")), rtol=1e-5)


@pytest.mark.parametrize(
    ("not_finite", "left_out", "end"),
    [
        ("stop", [], "step 2: the loss is NaN"),
        ("skip", [*range(2, 12)], "step 12: the loss is NaN"),
        ("rollback", [2], "there is no checkpoint to roll back to from step 2"),
    ],
)
def test_ranks_end_together_if_no_loss_is_finite(not_finite, left_out, end, dataset, tmp_path):
    """With such a learning rate every `train.not_finite` action fails in the end, on all ranks."""
    beyond = {"train.warmup_steps": 0, "train.learning_rate": 1e30, "train.not_finite": not_finite}
    settings = {**UNEVEN, **beyond, "checkpoint.every": 20, **training.phase(30)}
    code, log = training.train(tmp_path, dataset, ranks=3, **settings)
    assert code != 0, log
    found = re.findall(r"step (\d+) is (?:skipped|rolled back)", log)
    assert [*map(int, found)] == left_out
    # One error from each rank.
    errors = re.findall(r"error: (.*)", log)
    assert len(errors) == 3, log
    assert all(end in error for error in errors), log


def assert_ranks_report_one_reason(setting, reason, dataset, output):
    """Three ranks with this setting report one reason, whichever rank found the problem."""
    training.link_dataset(output, dataset)
    command = training.train_arguments(output, {"train.global_batch": 7, "train.micro_batch": 1})
    code, log = training.run_together(
        ([*command, "--set", setting.format(rank=rank, node=rank // 2)], variables)
        for rank, (command, variables) in enumerate(training.launch_ranks(command, 3))
    )
    assert code != 0, log
    assert len(re.findall(f"^.*{re.escape(reason)}", log, re.MULTILINE)) == 1, log
    assert "lost" not in log, log
    assert not [path for path in output.rglob("metrics.jsonl") if path.is_file()]


def test_incompatible_ranks_report_one_reason(dataset, tmp_path):
    training.link_dataset(tmp_path / "blocked", dataset)
    (tmp_path / "blocked" / "metrics.jsonl").mkdir()
    (tmp_path / "net0").symlink_to(training.SETTINGS["models.path"])
    for setting, reason in [
        ("train.global_batch=2", "global_batch = 2 has no row"),
        ("seed={rank}", "run.seed is 1 on rank 1, and 0 on rank 0"),
        (f"output={tmp_path}/blocked", "blocked/metrics.jsonl"),
        ("train.steps=5", "`train.steps` is not a key of the run file"),
        # The models are missing on one of two nodes.
        (f"models.path={tmp_path}/net{{node}}", f"models.path: {tmp_path}/net1"),
    ]:
        assert_ranks_report_one_reason(setting, reason, dataset, tmp_path)


# The ranks look for the folder for twenty seconds: a network file system may show it late.
@pytest.mark.slow
def test_nodes_without_shared_folder_are_refused(dataset, tmp_path):
    for rank in range(3):
        training.link_dataset(tmp_path / str(rank), dataset)
    reason = f"rank 1 does not find {tmp_path}/1/checkpoints"
    assert_ranks_report_one_reason(f"output={tmp_path}/{{rank}}", reason, dataset, tmp_path)


# Each rank looks for the models in a folder of its own.
REFUSED_WORKER = """
import json, os, sys
import tidemill
try:
    tidemill.train(json.loads(sys.argv[1]), models={"path": f"{sys.argv[2]}/net{os.environ['RANK']}"})
except tidemill.InputError as error:
    sys.stdout.write(f"caught on {os.environ['RANK']}: {error}\\n")
"""


def test_refusal_of_one_rank_raises_on_all(dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    for rank in (0, 2):
        (tmp_path / f"net{rank}").symlink_to(training.SETTINGS["models.path"])
    (tmp_path / "caught.py").write_text(REFUSED_WORKER)
    run = json.dumps({**training.SETTINGS, **UNEVEN, "output": str(tmp_path)})
    command = [str(tmp_path / "caught.py"), run, str(tmp_path)]
    _, log = training.run_together(training.launch_ranks(command, 3))
    caught = dict(re.findall(r"caught on (\d): (.*)", log))
    assert set(caught) == {"0", "1", "2"}, log
    assert all(f"{tmp_path}/net1" in message for message in caught.values()), log


# Starts Python anew in this process, which then imports another tidemill.
START_PYTHON = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def test_ranks_of_different_versions_are_refused(dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    other = tmp_path / "other" / "tidemill"
    shutil.copytree(Path(tidemill.__file__).parent, other)
    (native,) = other.glob("_native*.so")
    manifest = Path(__file__).resolve().parent.parent / "Cargo.toml"
    (version,) = re.findall(r'^version = "(.*)"', manifest.read_text(), re.MULTILINE)
    another = re.sub(r"\d", "9", version)
    native.write_bytes(native.read_bytes().replace(version.encode(), another.encode()))
    first, (command, variables) = training.launch_ranks(training.train_arguments(tmp_path, UNEVEN), 2)
    (tmp_path / "start.py").write_text(START_PYTHON)
    command = [str(tmp_path / "start.py"), *command]
    code, log = training.run_together([first, (command, {**variables, "PYTHONPATH": other.parent})])
    assert code != 0
    assert log.count(f'version is "{another}" on rank 1, and "{version}" on rank 0') == 1, log


def test_unknown_process_group_is_an_error(dataset, tmp_path):
    training.link_dataset(tmp_path, dataset)
    rank_arguments = [
        "--process-group=nobody",
        "--host-group=nobody",
        "--rank=0",
        "--world-size=2",
        "--local-world-size=2",
    ]
    command = [sys.executable, *training.train_arguments(tmp_path, {}), *rank_arguments]
    done = subprocess.run(command, env=training.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert "panicked" not in done.stderr
