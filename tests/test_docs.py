"""The code blocks of the pages: commands and Python run, run files are valid.

The quickstart tutorial runs as it is. Commands and Python of other pages run in a folder with small runs of
the names that pages use. `NOT_RUN` has the commands that do not, and why; the command line still checks their
arguments. A block that is not looked at has a comment before it, `<!-- not run: reason -->`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tidemill
import tomllib
from diffusers import UNet2DConditionModel
from helpers import training

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md"]
QUICKSTART = ROOT / "docs/tutorials/quickstart.md"
PAGES += sorted(set((ROOT / "docs").rglob("*.md")) - {QUICKSTART})
BLOCK = re.compile(r"^(?:<!-- not run: ([^>]+) -->\n\n?)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that are other programs', or that set up a checkout.
FOREIGN = {"pip", "docker", "kubectl", "tail", "git", "perf", "hf"}
# Commands that only the command line checks.
NOT_RUN = {
    r"s3://|hf://": "needs a bucket or the Hub",
    r"--watch|--serve": "does not end",
    r"--workers|--mode|torchrun": "other tests train with several processes, and in all modes",
    r"^(bench|compare|eval|plan \w+\.toml)": "needs people, judges or rates; each has its own tests",
    r"--from-diffusers": "the model of a published command is not here",
    r"--rejected|--study|--best": "needs rejected rows, a study or an evaluation",
}


def list_blocks(*languages, pages=PAGES):
    """Blocks that must hold: the page and line, and the text."""
    found = []
    for page in pages:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            reason, language, body = match.groups()
            if reason is None and language in languages:
                line = text[: match.start(3)].count("\n")
                found.append(pytest.param(body, id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def split_commands(body):
    """The commands of a shell block, without comments."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if ">" in words:
            words = words[: words.index(">")]
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words:
            yield words


def check_command(words, capfd):
    program, *arguments = words
    if program == "torchrun":
        program, arguments = "tidemill", arguments[arguments.index("tidemill") + 1 :]
    # After these, the command line looks at nothing else.
    if program == "tidemill" and not {"--version", "--from-diffusers"} & set(arguments):
        # With an added unknown flag, the command line must refuse only that flag.
        assert tidemill.main([*arguments, "--no-such-flag"]) == 2
        errors = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
        assert len(errors) == 1
        assert "--no-such-flag" in errors[0], errors
    elif program == "make":
        targets = [word for word in arguments if "=" not in word]
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}\b.*:", makefile, re.MULTILINE) for target in targets), words
    elif program in {"python", "bash"}:
        script = next(word for word in arguments if not word.startswith("-"))
        assert (ROOT / script).is_file(), words
    else:
        assert program in FOREIGN | {"tidemill"}, f"{words}: check it, or say before its block why not"


@pytest.mark.parametrize("body", list_blocks("sh", "bash"))
def test_commands_are_accepted(body, capfd):
    for words in split_commands(body):
        check_command(words, capfd)


def list_runnable(body):
    """The arguments of the block's `tidemill` commands that run here."""
    commands = [words[1:] for words in split_commands(body) if words[0] == "tidemill"]
    return [words for words in commands if not any(re.search(rule, " ".join(words)) for rule in NOT_RUN)]


@pytest.mark.parametrize("body", [block for block in list_blocks("sh") if list_runnable(block.values[0])])
def test_commands_run(body, trained_workspace):
    for arguments in list_runnable(body):
        assert tidemill.main(arguments) == 0, arguments


@pytest.mark.parametrize("body", list_blocks("toml"))
def test_run_files_are_valid(body):
    settings = tomllib.loads(body)
    # What a page leaves out because it is about other keys.
    source = {"uri": "pairs/*.parquet"} | settings.pop("source", {})
    prepare = {"resolutions": [256, 512]} | settings.pop("prepare", {})
    tidemill.resolve({"source": source, "prepare": prepare, **settings})


def test_quickstart_tutorial_runs(tmp_path):
    text = QUICKSTART.read_text()
    # In a tutorial, Python follows on commands.
    as_shell = {"sh": "{}", "python": "python - <<'PYTHON'\n{}PYTHON"}
    blocks = [as_shell[language].format(body) for _, language, body in BLOCK.findall(text)]
    python = Path(sys.executable)
    environment = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=240,
    )
    for made in ("report.html", "samples/0000.png", "export/model_index.json"):
        assert (tmp_path / "runs/pairs" / made).exists(), made


def write_workspace(folder, dataset):
    """Writes what the pages name: run files, datasets and models, all of them small."""
    (folder / "models").mkdir()
    (folder / "models/sd2").symlink_to(training.ASSETS)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "data").mkdir()
    (folder / "data/pairs").symlink_to(dataset.parent / "data")
    for name in ("mine", "sd2", "own"):
        (folder / "runs" / name).mkdir(parents=True)
        shutil.copytree(dataset, folder / "runs" / name / "dataset")
    for name in ("mine", "own", "run", "laion"):
        text = f"""
            output = "runs/{"own" if name == "own" else "mine"}"
            [source]
            uri = "data/pairs/*.parquet"
            columns = {{ image = "jpg", caption = "caption", key = "key" }}
            [models]
            path = "models/sd2"
            [prepare]
            resolutions = [64]
            [train]
            global_batch = 4
            micro_batch = 4
            [[train.phase]]
            resolution = 64
            steps = 1
            [sample]
            steps = 1
        """
        (folder / f"{name}.toml").write_text(text)


@pytest.fixture
def workspace(dataset, tmp_path, monkeypatch):
    """A folder for the pages' Python."""
    monkeypatch.chdir(tmp_path)
    write_workspace(tmp_path, dataset)
    # The pages' streams do not end.
    monkeypatch.setattr(tidemill.Stream, "__iter__", lambda stream: (next(stream) for _ in range(2)))


@pytest.fixture(scope="module")
def trained_folder(dataset, tmp_path_factory):
    """A folder for the pages' commands, with a trained run."""
    folder = tmp_path_factory.mktemp("pages")
    write_workspace(folder, dataset)
    tidemill.train(folder / "run.toml", output=folder / "runs/mine", models={"path": training.ASSETS})
    for name in ("a", "b", "quickstart"):
        (folder / "runs" / name).symlink_to(folder / "runs/mine")
    return folder


@pytest.fixture
def trained_workspace(trained_folder, monkeypatch):
    monkeypatch.chdir(trained_folder)


@pytest.mark.parametrize("body", list_blocks("python"))
def test_python_runs(body, workspace):
    body = body.replace("resolution=256, global_batch=128", "resolution=64, global_batch=8")
    unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(training.ASSETS / "unet"))
    exec(compile(body, "page", "exec"), {"__name__": "page", "my_unet": unet})
