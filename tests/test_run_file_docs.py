"""docs/run-file.md has every key of the run file, with the default that it has."""

import re
from pathlib import Path

import pytest
import tidemill
import tomllib

PAGE = Path(__file__).resolve().parent.parent / "docs" / "run-file.md"
ROW = re.compile(r"\| `([^`]+)` \| (?:`([^`]*)`|required|none) \| .+ \|")

# Every table that a run has only if it is written, with no more in it than it needs.
RUN = """
dedup.near.phash_distance = 1
filter.score.c.min = 1.0
engine.kind = "ray"
engine.train = {}
[train]
spike = {}
ema = {}
preview = {}
validation = {}
profile = {}
timesteps.logit_normal = {}
mix = [{ name = "a", repeat = 1.0 }]
phase = [{ resolution = 256, steps = 1, mix = { a = { repeat = 1.0 } } }]
"""
# What the page calls tables whose names are the user's, and entries of lists.
PLACES = {
    "filter.score.<column>": "filter.score.c",
    "train.mix": "train.mix.0",
    "train.phase": "train.phase.0",
    "train.phase.mix.<name>": "train.phase.0.mix.a",
}


def documented() -> dict[str, dict[str, str | None]]:
    """The keys and defaults by section; those before the first section under the empty name."""
    sections = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## ") or line.startswith("### "):
            name = re.search(r"`\[+([^\]]+)\]+`", line)
            keys = sections.setdefault(name[1] if name else "", {})
        elif row := ROW.fullmatch(line):
            assert row[1] not in keys, line
            keys[row[1]] = row[2]
    return sections


SECTIONS = documented()
# One of which is chosen, so that serde does not list them.
CHOICE = "train.phase.mix.<name>"


def table_of(run, section):
    table = tidemill.resolve(run)
    for step in PLACES.get(section, section).split(".") if section else []:
        table = table[int(step)] if isinstance(table, list) else table[step]
    return table


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


@pytest.mark.parametrize("section", [section for section in SECTIONS if section != CHOICE])
def test_the_page_has_the_sections_keys(run, section):
    place = PLACES.get(section, section)
    with pytest.raises(tidemill.InputError) as refused:
        tidemill.resolve(run, **{f"{place}.zzz".strip("."): 1})
    said = str(refused.value)
    known = re.findall(r"`(\w+)`", said.split("known here:")[1]) if "known here:" in said else None
    known = known or re.search(r"available keys: ([\w, ]+)", said)[1].split(", ")
    # Sections are keys, too.
    inner = [name for name in SECTIONS if name and "." not in name] if section == "" else []
    assert sorted(known) == sorted([*SECTIONS[section], *inner])


@pytest.mark.parametrize("section", SECTIONS)
def test_the_defaults_are_those_of_the_page(run, tmp_path, section):
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    try:
        table = table_of(str(empty), section)
    except (KeyError, IndexError, TypeError):
        table = table_of(run, section)
    for key, default in SECTIONS[section].items():
        value = None if default is None else tomllib.loads(f"x = {default}")["x"]
        # Tables have sections of their own; without an output the run's name is in it.
        if value not in (None, {}) and (section, key) != ("", "output"):
            assert (table[key], type(table[key])) == (value, type(value)), key
