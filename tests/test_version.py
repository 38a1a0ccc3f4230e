"""The version has one source, Cargo.toml."""

import re
from pathlib import Path

import tidemill

ROOT = Path(__file__).resolve().parent.parent


def test_version_of_module_cargo_and_pyproject_agree():
    package = (ROOT / "Cargo.toml").read_text().split("[workspace.package]")[1]
    (version,) = re.findall(r'^version = "(.*)"', package.split("\n[")[0], re.MULTILINE)
    assert tidemill.__version__ == version
    # maturin takes the version of the native module's crate, which is the workspace's.
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert "version.workspace = true" in (ROOT / "crates/tidemill-python/Cargo.toml").read_text()
