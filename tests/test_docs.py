"""The code blocks of the pages: commands are accepted, Python runs, run files are valid.

Shell blocks of docs/tutorials/quickstart.md run as they are. Of other pages the command line checks each
`tidemill` command, and a target of make must exist. A block that is not checked has a comment before it,
`<!-- not run: reason -->`.
"""

import os
import re
import shlex
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


@pytest.fixture
def workspace(dataset, tmp_path, monkeypatch):
    """A folder with what the pages' Python names: run files, datasets and models, all of them small."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/sd2").symlink_to(training.ASSETS)
    for name in ("mine", "sd2", "own"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "dataset").symlink_to(dataset)
    for name in ("mine", "own"):
        text = f"""
            output = "runs/{name}"
            [source]
            uri = "{dataset.parent}/data/*.parquet"
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
        """
        (tmp_path / f"{name}.toml").write_text(text)
    # The pages' streams do not end.
    monkeypatch.setattr(tidemill.Stream, "__iter__", lambda stream: (next(stream) for _ in range(2)))


@pytest.mark.parametrize("body", list_blocks("python"))
def test_python_runs(body, workspace):
    body = body.replace("resolution=256, global_batch=128", "resolution=64, global_batch=8")
    unet = UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(training.ASSETS / "unet"))
    exec(compile(body, "page", "exec"), {"__name__": "page", "my_unet": unet})
