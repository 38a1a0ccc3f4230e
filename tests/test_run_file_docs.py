"""docs/run-file.md has every key of the run file with its default."""

import re
from pathlib import Path

import pytest
import tidemill
import tomllib

PAGE = Path(__file__).resolve().parent.parent / "docs" / "run-file.md"
ROW = re.compile(r"\| `([^`]+)` \| (?:`([^`]*)`|required|none) \| .+ \|")

# Every optional table, with only its required keys.
RUN = """
dedup.near.phash_distance = 1
dedup.similar.cosine = 0.9
filter.score.c.min = 1.0
score.path = "clip"
score.heads.h.path = "head.safetensors"
checkpoint.keep_best = { metric = "fid", count = 1 }
engine.kind = "ray"
engine.train = {}
engine.eval = {}
plan.encoders = {}
plan.nodes.n = {}
plan.rates.g = {}
track.mlflow = {}
[train]
spike = {}
ema = {}
preview = {}
validation = {}
profile = {}
timesteps.logit_normal = {}
flow_shift = {}
edm = {}
mix = [{ name = "a", repeat = 1.0 }]
phase = [{ resolution = 256, steps = 1, mix = { a = { repeat = 1.0 } } }]
"""
# The page's names of lists' entries, and of tables that the user names, in the run file above.
KEY_PATHS = {
    "filter.score.<column>": "filter.score.c",
    "score.heads.<name>": "score.heads.h",
    "plan.nodes.<name>": "plan.nodes.n",
    "plan.rates.<gpu>": "plan.rates.g",
    "train.mix": "train.mix.0",
    "train.phase": "train.phase.0",
    "train.phase.mix.<name>": "train.phase.0.mix.a",
}


def read_page() -> dict[str, dict[str, str | None]]:
    """Keys and defaults by section; the top-level keys have the empty name."""
    sections = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## ") or line.startswith("### "):
            name = re.search(r"`\[+([^\]]+)\]+`", line)
            keys = sections.setdefault(name[1] if name else "", {})
        elif row := ROW.fullmatch(line):
            assert row[1] not in keys, line
            keys[row[1]] = row[2]
    return sections


SECTIONS = read_page()
# A choice between keys, which serde does not list.
CHOICE = "train.phase.mix.<name>"


def get_table(run, section):
    table = tidemill.resolve(run)
    for step in KEY_PATHS.get(section, section).split(".") if section else []:
        table = table[int(step)] if isinstance(table, list) else table[step]
    return table


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


@pytest.mark.parametrize("section", [section for section in SECTIONS if section != CHOICE])
def test_page_has_all_keys_of_section(run, section):
    path = KEY_PATHS.get(section, section)
    with pytest.raises(tidemill.InputError) as refused:
        tidemill.resolve(run, **{f"{path}.zzz".strip("."): 1})
    message = str(refused.value)
    known = re.findall(r"`(\w+)`", message.split("known here:")[1]) if "known here:" in message else None
    known = known or re.search(r"available keys: ([\w, ]+)", message)[1].split(", ")
    # Sections are keys of the top level.
    inner = [name for name in SECTIONS if name and "." not in name] if section == "" else []
    assert sorted(known) == sorted([*SECTIONS[section], *inner])


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_match_page(run, tmp_path, section):
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    try:
        table = get_table(str(empty), section)
    except (KeyError, IndexError, TypeError):
        table = get_table(run, section)
    for key, default in SECTIONS[section].items():
        value = None if default is None else tomllib.loads(f"x = {default}")["x"]
        # Tables have sections of their own, and the default output contains the run's name.
        if value not in (None, {}) and (section, key) != ("", "output"):
            assert (table[key], type(table[key])) == (value, type(value)), key
