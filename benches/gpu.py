"""`bash benches/gpu.sh`: steps of SD2's U-Net, or another network, on one GPU, in Tidemill and in diffusers.

The real configuration with random weights, bf16, latents of 512 and 256 pixels; one side after the
other, what matters most first. Prints a table, and writes it and the figures into a folder after
each side. Calls for other sides or sizes add to them, as long as device and versions are the same.
With `--device cpu` and a smaller network it runs on any machine.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from tidemill import _native

from benches import report, runner
from benches.alternate import Side, line_counter, measure_alternately
from benches.published_models import CONFIGS, count_parameters, make_published_model
from benches.runner import BenchError
from benches.train import make_models, run_settings, settings

TIDEMILL = [sys.executable, "-m", "tidemill"]
PAIRS = 128
# Steps before the measurement; the first ones do additional work.
WARM = 5
# MLPerf's best published figure of one H200 at 512 pixels.
GOAL, GOAL_DEVICE = {512: 151.0}, "H200"
# The size of latents in the model's configuration.
SIZE = 64
COMPILED = "diffusers, torch.compile"
AUTOTUNED = "diffusers, torch.compile, max-autotune"
# Lines with the cause of an error: Tidemill's begin with a cross, tracebacks' with the exception.
ERROR_CAUSE = re.compile(r"\u00d7|[\w.]+(Error|Exception)\b")


@dataclass(frozen=True)
class Setting:
    """The parameters that all sides have in common."""

    folder: Path
    model: Path
    pixels: int
    batch: int
    steps: int
    device: str


def tidemill(
    setting: Setting, *denoiser: str, recorded: bool = False, **more: object
) -> tuple[list[str], Path]:
    """`tidemill train` with more settings, or with options of `own_denoiser` what that does.

    And where its steps are.
    """
    output = empty_output(setting)
    run = {
        **preprocessing(setting),
        "output": str(output),
        "train.precision": "bf16",
        "train.global_batch": setting.batch,
        "train.micro_batch": setting.batch,
        "train.log_every": 1,
        "train.cuda_graph": recorded,
        # The side is ended before its last step, and so before a checkpoint.
        "train.phase": [{"resolution": setting.pixels, "steps": 10 * setting.steps}],
        **more,
    }
    (output / "dataset").symlink_to(setting.folder / f"data-{setting.pixels}" / "dataset")
    if denoiser:
        arguments = runner.peer("own_denoiser", json.dumps(run_settings("gpu", **run)), *denoiser).arguments
    else:
        arguments = [*TIDEMILL, "train", *settings("gpu", **run), "--json", "--quiet"]
    return arguments, output / "metrics.jsonl"


def diffusers(setting: Setting, *flags: str) -> tuple[list[str], Path]:
    """diffusers' U-Net in PyTorch, and where its steps are."""
    log = empty_output(setting) / "diffusers.jsonl"
    # Latents are an eighth of the pixels.
    shape = ["--batch", setting.batch, "--size", setting.pixels // 8, "--steps", setting.steps, "--log", log]
    where = ["--device", setting.device, "--bf16"]
    return runner.peer("diffusers_train", setting.model, *map(str, shape), *where, *flags).arguments, log


def empty_output(setting: Setting) -> Path:
    """An empty folder for the output of a side.

    torch.compile's output is large, so sides share it.
    """
    output = setting.folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    return output


# The sides, the most important first.
SIDES: dict[str, Callable[[Setting], tuple[list[str], Path]]] = {
    "Tidemill, recorded": lambda setting: tidemill(setting, recorded=True),
    "Tidemill": tidemill,
    "diffusers, eager, channels-last": lambda setting: diffusers(setting, "--channels-last"),
    "diffusers, eager": diffusers,
    COMPILED: lambda setting: diffusers(setting, "--channels-last", "--compile"),
    AUTOTUNED: lambda setting: diffusers(setting, "--channels-last", "--compile", "max-autotune"),
    "Tidemill with diffusers' U-Net": lambda setting: tidemill(setting, "--eager"),
    "Tidemill with diffusers' U-Net, recorded": lambda setting: tidemill(setting, "--eager", recorded=True),
}


def preprocessing(setting: Setting) -> dict[str, object]:
    """The settings of this bench's run file, in addition to those of `benches.train`."""
    return {
        "source.uri": f"{setting.folder}/pairs-{setting.pixels}/*.parquet",
        "prepare.resolutions": [setting.pixels],
        "models.path": str(setting.model),
        "engine.device": setting.device,
        "output": str(setting.folder / f"data-{setting.pixels}"),
    }


def prepare(setting: Setting, side: int) -> None:
    """Makes the latents of images whose sides are at least this long, unless they exist."""

    def pairs(folder: Path) -> None:
        sides = ["--min-side", str(side), "--max-side", str(side + 64)]
        run_verb("synth", str(folder), "--rows", str(PAIRS), "--files", "2", *sides)

    def data(folder: Path) -> None:
        run = {**preprocessing(setting), "output": str(folder)}
        run_verb("preprocess", *settings("gpu", **run))

    make_once(setting.folder / f"pairs-{setting.pixels}", pairs)
    make_once(setting.folder / f"data-{setting.pixels}", data)


def run_verb(verb: str, *arguments: str) -> None:
    ended = subprocess.run([*TIDEMILL, verb, *arguments, "-q"], check=False)
    if ended.returncode != 0:
        raise BenchError(f"tidemill {verb} ended with {ended.returncode}")


def make_once(folder: Path, make: Callable[[Path], object]) -> None:
    """Makes a folder unless it exists.

    It gets its name when it is complete, so a killed run leaves none.
    """
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        part.rename(folder)


def measure(setting: Setting, name: str, limit_s: float) -> dict[str, float]:
    """Images per second after the first steps, and seconds to the first one."""
    if name.startswith(report.OURS):
        prepare(setting, setting.pixels)
    arguments, log = SIDES[name](setting)
    return measure_side(setting, Side(name, arguments, line_counter(log)), limit_s)


def measure_side(setting: Setting, side: Side, limit_s: float) -> dict[str, float]:
    """Images per second after the first steps, and seconds to the first one."""
    measure_alternately([side], setting.steps, turn_s=limit_s, limit_s=limit_s)
    for line in side.stderr.splitlines():
        # Warnings, for example that a kernel of Tidemill cannot be used.
        if "WARN" in line:
            print(f"  {side.name}: {line.strip()}", flush=True)
    seconds = side.step_ends[-1] - side.step_ends[WARM - 1]
    # This happens on the fake GPU, for example, which computes nothing.
    if seconds <= 0:
        raise BenchError(f"{side.name} took its steps faster than can be measured; --steps makes them more")
    rate = setting.batch * (setting.steps - WARM) / seconds
    return {"images_per_second": rate, "first_step_s": side.step_ends[0]}


def try_side(setting: Setting, name: str, limit_s: float) -> dict[str, object]:
    """The entry of a side in gpu.json. A side that fails does not end the bench."""
    entry = {"pixels": setting.pixels, "batch": setting.batch, "side": name}
    try:
        entry |= measure(setting, name, limit_s)
        summary = "{images_per_second:.2f} img/s, first step after {first_step_s:.1f} s".format(**entry)
    except BenchError as error:
        entry["failed"] = summarize_error(str(error))
        summary = f"failed: {error}"
    print(f"  {setting.pixels} pixels: {name} {summary}", flush=True)
    return entry


def summarize_error(error: str) -> str:
    """The most informative line of an error, short enough for a table."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if ERROR_CAUSE.match(line)] or lines
    return causes[-1].strip("\u00d7: ").replace("|", "/")[:100]


def list_cases(args: argparse.Namespace) -> list[tuple[Setting, str]]:
    """The selected cases in the order of measuring: torch.compile takes minutes and comes last."""
    model = args.folder / "model"
    sizes = [
        Setting(args.folder, model, pixels, batch, args.steps, args.device)
        for pixels, batch in zip(args.pixels, args.batch, strict=True)
    ]
    every = [(size, name) for size in sizes for name in args.sides]
    return sorted(every, key=lambda case: case[1] in (COMPILED, AUTOTUNED))


def open_results(args: argparse.Namespace) -> dict:
    """Earlier results of the same device and versions; otherwise empties the folder."""
    versions = runner.versions("torch", "diffusers")
    # The commit is unknown without git, and may change without a new build, so the build is
    # compared.
    commit, build = versions.pop("tidemill"), sha256(Path(_native.__file__).read_bytes()).hexdigest()[:8]
    common = {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else runner.machine()["cpu"],
        "versions": {"tidemill's build": build, **versions},
        "model": args.model,
        "channels": args.channels,
        "text": args.text,
        "steps": args.steps,
    }
    path = args.folder / "gpu.json"
    results = json.loads(path.read_text())[0] if path.exists() else {}
    if {key: results.get(key) for key in common} != common:
        shutil.rmtree(args.folder, ignore_errors=True)
        results = {**common, "commit": commit, "sides": []}
        report.write_json(path, [results])
    make_once(args.folder / "model", lambda folder: make_model(folder, args))
    return results


def make_model(folder: Path, args: argparse.Namespace) -> None:
    if args.model == "sd2":
        make_models(folder, args.channels, args.text, SIZE)
    else:
        make_published_model(args.model, folder)


def add_entry(results: dict, entry: dict[str, object]) -> None:
    """Adds the entry of a side, or replaces it."""
    sides = {(one["pixels"], one["batch"], one["side"]): one for one in [*results["sides"], entry]}
    # Entries of one size are together.
    results["sides"] = sorted(sides.values(), key=lambda one: (-one["pixels"], one["batch"]))


def format_page(results: dict, millions: float) -> str:
    versions = {"tidemill": results["commit"], **results["versions"]}
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    size = f"{millions:.0f} million parameters"
    head = f"On {results['device']} with {named}: {size}, {results['steps'] - WARM} steps after {WARM}."
    heads = ["pixels", "batch", "", "img/s", "first step after, s", "goal"]
    # The goal is one for SD2's U-Net.
    is_sd2 = results["model"] == "sd2"
    rows = [format_row(results["device"], entry, is_sd2) for entry in results["sides"]]
    return f"{head}\n\n{report.table(heads, rows)}\n"


def format_row(device: str, entry: dict, is_sd2: bool) -> list[str]:
    shown = [str(entry["pixels"]), str(entry["batch"]), entry["side"]]
    if "failed" in entry:
        return [*shown, f"failed: {entry['failed']}", "", ""]
    rate = entry["images_per_second"]
    judged = format_goal(device, entry["pixels"], entry["side"], rate) if is_sd2 else ""
    return [*shown, f"{rate:.2f}", f"{entry['first_step_s']:.1f}", judged]


def bench(args: argparse.Namespace) -> None:
    deadline = time.monotonic() + args.limit_s - (time.time() - args.started)
    if args.model.startswith("sd3") and any("with diffusers" in side for side in args.sides):
        raise BenchError("only U-Nets of diffusers are trained by Tidemill here; choose other --sides")
    results = open_results(args)
    millions = count_parameters(args.folder / "model")
    failed = []
    for setting, name in list_cases(args):
        title = f"{name} at {setting.pixels} pixels"
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            print(f"  left out, {args.limit_s:g} s are over: {title}", flush=True)
            continue
        entry = try_side(setting, name, min(args.side_limit_s, remaining_s))
        failed += [title] if "failed" in entry else []
        add_entry(results, entry)
        # Results stay if the bench is killed.
        report.write_json(args.folder / "gpu.json", [results])
        (args.folder / "gpu.md").write_text(format_page(results, millions))
    print(f"\n{format_page(results, millions)}")
    if failed:
        raise BenchError(f"failed: {'; '.join(failed)}")


def format_goal(device: str, pixels: int, name: str, rate: float) -> str:
    """The goal, if it applies to this side and device."""
    is_ours = name in ("Tidemill", "Tidemill, recorded")
    if not is_ours or pixels not in GOAL or GOAL_DEVICE not in device:
        return ""
    return f"{GOAL[pixels]:.0f}" + (", missed" if rate <= GOAL[pixels] else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=runner.RESULTS / "gpu", help="where everything goes")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES)[:5])
    parser.add_argument("--pixels", nargs="+", type=int, default=[512, 256])
    parser.add_argument("--batch", nargs="+", type=int, default=[32, 128], help="for each size")
    # Eight minutes without the time for ending and writing.
    parser.add_argument(
        "--limit-s", type=float, default=460, help="all sides together; those later than this are left out"
    )
    parser.add_argument(
        "--started", type=float, default=time.time(), help="when these seconds began, in Unix time; else now"
    )
    parser.add_argument(
        "--side-limit-s", type=float, default=240, help="a side that takes longer than this has failed"
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", choices=["sd2", *CONFIGS], default="sd2", help="which network")
    parser.add_argument("--channels", type=int, default=320, help="of SD2's first block, which has 320")
    parser.add_argument("--text", type=int, default=1024, help="width of SD2's text embeddings, 1024")
    small = {"pixels": [64], "batch": [4], "channels": 64, "text": 64}
    quick = {
        "folder": runner.RESULTS / "gpu-quick",
        "device": "cpu",
        "sides": ["Tidemill"],
        "steps": WARM + 3,
        **small,
    }
    runner.main("gpu", bench, parser, quick)
