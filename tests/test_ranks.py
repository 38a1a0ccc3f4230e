"""Several ranks over Gloo: training is the same whatever their number, and so is what they refuse."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks
import tidemill
from safetensors.torch import load_file


def check_validations(ours, theirs, tolerance):
    found, expected = (
        [line for line in ranks.metrics(output) if "validation_loss" in line] for output in (ours, theirs)
    )
    assert [line["step"] for line in found] == [line["step"] for line in expected] == [5, 10]
    for name in ("validation_loss", "validation_ema_loss"):
        np.testing.assert_allclose(
            *([line[name] for line in lines] for lines in (found, expected)), rtol=tolerance
        )
    assert all(line["validation_rows"] == 20 for line in found)


def check_metrics(lines, world, sharded):
    """What a line has beside the loss."""
    assert [line["step"] for line in lines] == list(range(1, 11))
    for line in lines:
        assert line["learning_rate"] == 1e-3
        assert line["grad_norm"] > 0
        assert line["images_per_second"] > 0
        assert 0 <= line["data_wait"] <= 1
        for kind, time in line["communication"].items():
            # Weights come from the step before, and without shards from nowhere.
            if kind == "weights" and (line["step"] == 1 or not sharded):
                assert time == {"busy": None, "exposed": 0}
            else:
                assert time["busy"] > 0
                assert 0 <= time["exposed"] <= time["busy"]
        # Nothing is computed while ranks ask each other.
        assert line["communication"]["ranks"]["exposed"] == line["communication"]["ranks"]["busy"]
        assert len(line["memory_mib"]) == world
        assert min(line["memory_mib"]) > 50
        assert line["gpu_memory_mib"] is None
        # It is written while training goes on.
        assert line["checkpoint"] in ([0] if line["step"] <= 5 else [0, 5])
    # Behind the last gradients of a backward pass there is nothing to hide their way.
    assert sum(line["communication"]["gradients"]["exposed"] for line in lines) > 0


@pytest.fixture(scope="module")
def single(dataset, tmp_path_factory):
    """The run of one rank that others are compared with."""
    output = tmp_path_factory.mktemp("single")
    code, said = ranks.train(output, dataset, **UNEVEN, **validation(dataset))
    assert code == 0, said
    return output


def validation(dataset):
    """The loss on 20 rows after each five steps."""
    return {"train.validation": {"every": 5, "rows": 20, "dataset": str(dataset)}}


# Neither 3 nor 4 ranks divide the batch, nor micro-batches the shares.
UNEVEN = {"train.global_batch": 14, "train.micro_batch": 5}


@pytest.mark.parametrize(
    ("world", "nodes", "settings"),
    [
        (2, 1, {"train.bucket_bytes": "1 MiB"}),
        (3, 1, {"train.micro_batch": 2, "train.bucket_bytes": "100 KiB"}),
        (4, 1, {"checkpoint.writers": "first"}),
        (4, 2, {"checkpoint.writers": "node"}),
        (3, [2, 1], {}),
        (2, 1, {"train.gradient_checkpointing": True}),
        (2, 1, {"train.sharding": "none", "train.micro_batch": 3}),
        (3, 1, {"train.sharding": "none", "train.reduce_precision": "bf16"}),
        (2, 1, {"train.reduce_precision": "bf16", "train.bucket_bytes": "1 MiB"}),
        (2, 1, {"train.moment_precision": "bf16", "checkpoint.writers": "first"}),
    ],
)
def test_any_number_of_ranks_trains_alike(world, nodes, settings, single, dataset, tmp_path):
    settings = {**UNEVEN, **validation(dataset), **settings}
    code, said = ranks.train(tmp_path, dataset, ranks=world, nodes=nodes, **settings)
    assert code == 0, said
    assert re.search(rf"each of {world} ranks sends [\d.]+ MiB of gradients and [\d.]+ \w+ of weights", said)
    check_metrics(ranks.metrics(tmp_path), world, settings.get("train.sharding") != "none")
    rounded = "bf16" in (settings.get("train.reduce_precision"), settings.get("train.moment_precision"))
    np.testing.assert_allclose(ranks.losses(tmp_path), ranks.losses(single), rtol=1e-3 if rounded else 1e-5)
    check_validations(tmp_path, single, 1e-3 if rounded else 1e-5)
    ours, theirs, before = ranks.state(tmp_path, 10), ranks.state(single, 10), ranks.state(single, 5)
    for name in ("master", "ema"):
        worst = np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max()
        of_update = np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name] - before[name])
        print(f"{world} ranks, {settings}: {name} differs by {worst:.1e}, {of_update:.1e} of the update")
        assert worst <= (1e-3 if rounded else 1e-5)
    shards = list((tmp_path / "checkpoints/step-00000010").rglob("*.safetensors"))
    writers = {"first": 1, "node": nodes, "all": world}
    assert len(shards) == writers[settings.get("checkpoint.writers", "all")]
    code, said = ranks.train(tmp_path, dataset, ranks=1, **{**UNEVEN, "train.eps": 1e-8})
    assert code == 0, said
    assert "resuming after step 10" in said, said
    assert "train.eps is 1e-8" in said, said


def test_a_damaged_shard_of_one_rank_is_named_and_no_rank_uses_its_checkpoint(dataset, tmp_path):
    code, said = ranks.train(tmp_path, dataset, ranks=2, **UNEVEN)
    assert code == 0, said
    (shard,) = (tmp_path / "checkpoints/step-00000010").rglob("rank-1-of-2.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    longer = {"train.phase": [{"resolution": 64, "steps": 12}]}
    code, said = ranks.train(tmp_path, dataset, ranks=3, **UNEVEN, **longer)
    assert code == 0, said
    (told,) = re.findall(r".*rank-1-of-2\.safetensors.*", said)
    assert "trying the checkpoint before it" in told
    assert said.count("resuming after step 5") == 1, said
    lines = ranks.metrics(tmp_path)
    assert len(lines) == 12
    assert [line["checkpoint"] for line in lines[5:10]] == [5] * 5


def test_the_recipe_of_the_docs_reads_a_checkpoint(single):
    docs = Path(__file__).resolve().parent.parent / "docs" / "checkpoints.md"
    (code,) = re.findall(r"```python\n(.*?)```", docs.read_text(), re.DOTALL)
    code = code.replace('"runs/mine/checkpoints"', repr(str(single / "checkpoints"))).replace(
        "00001000", "00000010"
    )
    found = {}
    exec(code, found)
    flat = np.concatenate([weights.ravel() for weights in found["weights"].values()])
    assert np.array_equal(flat, ranks.state(single, 10)["ema"])
    assert found["weights"]["conv_in.weight"].ndim == 4


def test_averaged_weights_are_exported_unless_others_are_asked_for(single, tmp_path):
    arguments = ranks.arguments(single, {})[3:]
    state = ranks.state(single, 10)
    for name, flags in [("ema", []), ("master", ["--no-ema"])]:
        assert tidemill.main(["export", *arguments, "--to", str(tmp_path / name), *flags]) == 0
        exported = load_file(tmp_path / name / "unet" / "diffusion_pytorch_model.safetensors")
        parameters = json.loads((single / "checkpoints/step-00000010/commit.json").read_text())["parameters"]
        flat = np.concatenate([exported[p["name"]].numpy().ravel() for p in parameters])
        assert np.array_equal(flat, state[name]), name
        assert not np.array_equal(state["ema"], state["master"])


def test_adamw_as_it_is_used_differs_by_little_of_the_update(dataset, tmp_path):
    found = []
    for world in (1, 3):
        output = tmp_path / str(world)
        code, said = ranks.train(output, dataset, ranks=world, **{**UNEVEN, "train.eps": 1e-8})
        assert code == 0, said
        found.append(ranks.state(output, 10)["master"])
        before = ranks.state(output, 5)["master"]
    of_update = np.linalg.norm(found[0] - found[1]) / np.linalg.norm(found[1] - before)
    print(f"difference / update: {of_update:.1e}")
    assert of_update <= 1e-2


@pytest.mark.parametrize(("action", "factor"), [("skip", 1.0001), ("rollback", 1.05)])
def test_ranks_do_the_same_about_spikes(action, factor, dataset, tmp_path):
    spike = {"factor": factor, "window": 2, "action": action}
    found, samples = [], []
    for world in (1, 3):
        output = tmp_path / str(world)
        settings = {**UNEVEN, "train.spike": spike, "checkpoint.every": 2}
        code, said = ranks.train(output, dataset, ranks=world, **settings)
        assert code == 0, said
        found.append(re.findall(r"step (\d+) is (?:left out|gone back from)", said))
        lines = (output / "anomalies.jsonl").read_text().splitlines()
        samples.append([(line["step"], sorted(line["samples"])) for line in map(json.loads, lines)])
        back = re.findall(r"back at step \d+ of the last checkpoint; \d+ steps and [\d.]+ s are lost", said)
        assert len(back) == (len(found[-1]) if action == "rollback" else 0), said
    assert found[0] == found[1] != []
    assert samples[0] == samples[1]
    assert all(len(ids) == 14 for _, ids in samples[0])
    np.testing.assert_allclose(*(ranks.losses(tmp_path / world) for world in ("1", "3")), rtol=1e-5)


@pytest.mark.parametrize(
    ("not_finite", "left_out", "end"),
    [
        ("stop", [], "step 2: the loss is NaN"),
        ("skip", [*range(2, 12)], "step 12: the loss is NaN"),
        ("rollback", [2], "there is none to go back to from step 2"),
    ],
)
def test_ranks_end_alike_where_no_loss_is_finite(not_finite, left_out, end, dataset, tmp_path):
    """With weights that are beyond repair each way out comes to its end, on all ranks at once."""
    beyond = {"train.warmup_steps": 0, "train.learning_rate": 1e30, "train.not_finite": not_finite}
    settings = {**UNEVEN, **beyond, "checkpoint.every": 20, "train.phase": [{"resolution": 64, "steps": 30}]}
    code, said = ranks.train(tmp_path, dataset, ranks=3, **settings)
    assert code != 0, said
    found = re.findall(r"step (\d+) is (?:left out|gone back from)", said)
    assert [*map(int, found)] == left_out
    # Of each rank.
    errors = re.findall(r"error: (.*)", said)
    assert len(errors) == 3, said
    assert all(end in error for error in errors), said


def test_ranks_that_cannot_work_together_say_why(dataset, tmp_path):
    for name in ("0", "1", "2", "blocked"):
        ranks.link(tmp_path / name, dataset)
    (tmp_path / "blocked" / "metrics.jsonl").mkdir()
    (tmp_path / "net0").symlink_to(ranks.SETTINGS["models.path"])
    for settings, flags, reason in [
        ({"train.global_batch": 2, "train.micro_batch": 1}, [], "global_batch = 2 has no row"),
        (UNEVEN, ["--set", "seed=$RANK"], "run.seed is 1 on rank 1, and 0 on rank 0"),
        # As on nodes that share no folder.
        (
            UNEVEN,
            ["--set", f"output={tmp_path}/$RANK"],
            f"rank 1 does not find {tmp_path}/1/checkpoints",
        ),
        (UNEVEN, ["--set", f"output={tmp_path}/blocked"], "blocked/metrics.jsonl"),
        (UNEVEN, ["--set", "train.steps=5"], "`train.steps` is not a key of the run file"),
        # On one node only.
        (UNEVEN, ["--set", f"models.path={tmp_path}/net$((RANK / 2))"], f"models.path: {tmp_path}/net1"),
    ]:
        ranks.link(tmp_path, dataset)
        command = [sys.executable, *ranks.arguments(tmp_path, settings)]
        shell = " ".join(f"'{part}'" for part in command) + " " + " ".join(flags)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
        done = subprocess.run(
            [*launch, "--no-python", "bash", "-c", shell],
            env=ranks.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode != 0, done.stderr
        # In one message, whoever found it.
        assert len(re.findall(f"^.*{re.escape(reason)}", done.stderr, re.MULTILINE)) == 1, done.stderr
        assert "lost" not in done.stderr, done.stderr
        assert not [path for path in tmp_path.rglob("metrics.jsonl") if path.is_file()]


# Each rank looks for the models in another folder.
CAUGHT = """
import json, os, sys
import tidemill
try:
    tidemill.train(json.loads(sys.argv[1]), models={"path": f"{sys.argv[2]}/net{os.environ['RANK']}"})
except tidemill.InputError as error:
    sys.stdout.write(f"caught on {os.environ['RANK']}: {error}\\n")
"""


def test_what_one_rank_refuses_is_an_exception_on_all(dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    for rank in (0, 2):
        (tmp_path / f"net{rank}").symlink_to(ranks.SETTINGS["models.path"])
    (tmp_path / "caught.py").write_text(CAUGHT)
    run = json.dumps({**ranks.SETTINGS, **UNEVEN, "output": str(tmp_path)})
    launch = ["--standalone", "--nproc-per-node=3", str(tmp_path / "caught.py"), run, str(tmp_path)]
    _, said = ranks.together([[*ranks.TORCHRUN, *launch]])
    caught = dict(re.findall(r"caught on (\d): (.*)", said))
    assert set(caught) == {"0", "1", "2"}, said
    assert all(f"{tmp_path}/net1" in message for message in caught.values()), said


def test_ranks_of_different_versions_say_so(dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    other = tmp_path / "other" / "tidemill"
    shutil.copytree(Path(tidemill.__file__).parent, other)
    (native,) = other.glob("_native*.so")
    manifest = Path(__file__).resolve().parent.parent / "Cargo.toml"
    (version,) = re.findall(r'^version = "(.*)"', manifest.read_text(), re.MULTILINE)
    another = re.sub(r"\d", "9", version)
    native.write_bytes(native.read_bytes().replace(version.encode(), another.encode()))
    command = " ".join(f"'{part}'" for part in [sys.executable, *ranks.arguments(tmp_path, UNEVEN)])
    shell = f"[ $RANK = 1 ] && export PYTHONPATH={other.parent}; exec {command}"
    launch = ["--standalone", "--nproc-per-node=2", "--no-python", "bash", "-c", shell]
    code, said = ranks.together([[*ranks.TORCHRUN, *launch]])
    assert code != 0
    assert said.count(f'version is "{another}" on rank 1, and "{version}" on rank 0') == 1, said


def test_an_unknown_group_is_an_error_not_a_crash(dataset, tmp_path):
    ranks.link(tmp_path, dataset)
    place = [
        "--process-group=nobody",
        "--host-group=nobody",
        "--rank=0",
        "--world-size=2",
        "--local-world-size=2",
    ]
    command = [sys.executable, *ranks.arguments(tmp_path, {}), *place]
    done = subprocess.run(command, env=ranks.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert "panicked" not in done.stderr
