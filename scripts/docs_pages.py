"""Hooks of MkDocs: pages that lie outside of docs/ or are generated, and links between all of them."""

import os
import re
import subprocess
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
TIDEMILL = ROOT / "target/release/tidemill"
# Pages of the site, and the files that they come from.
OUTSIDE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "deploy.md": "deploy/README.md",
    "fuzz.md": "fuzz/README.md",
}
# The target of a link to another file, and its anchor.
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, and all files that pages link to."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "command-line.md", content=describe_command_line()))
    files.append(File.generated(config, "python.md", content="# Python\n\n::: tidemill\n"))
    for page in files.documentation_pages():
        for link, _ in LINK.findall(page.content_string):
            target = resolve(page.src_uri, link)
            if target is not None and to_page(target) is None and target not in files.src_uris:
                files.append(File.generated(config, target, content=(ROOT / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links at the site's files."""

    def rewrite(match: re.Match[str]) -> str:
        target = resolve(page.file.src_uri, match[1])
        if target is None:
            return match[0]
        to = to_page(target) or target
        start = PurePosixPath(page.file.src_uri).parent
        return f"]({os.path.relpath(to, start)}{match[2] or ''})"

    return LINK.sub(rewrite, markdown)


def resolve(page: str, link: str) -> str | None:
    """The file of the repository that a link on a page of the site means; none if there is none."""
    source = OUTSIDE.get(page, f"docs/{page}")
    target = os.path.normpath(PurePosixPath(source).parent / link)
    return target if (ROOT / target).is_file() else None


def to_page(target: str) -> str | None:
    """The site's name of a file of the repository, if it is a page or a picture of docs/."""
    named = {source: page for page, source in OUTSIDE.items()}
    if target in named:
        return named[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else None


def describe_command_line() -> str:
    """What `--help` says of every verb."""
    parts = ["# Command line", f"```text\n{help_of()}\n```"]
    for verb in list_verbs(help_of()):
        text = help_of(verb)
        parts += [f"## tidemill {verb}", f"```text\n{text}\n```"]
        parts += [f"```text\n{help_of(verb, inner)}\n```" for inner in list_verbs(text)]
    return "\n\n".join(parts) + "\n"


def list_verbs(text: str) -> list[str]:
    """The verbs that a help text lists."""
    _, _, commands = text.partition("Commands:")
    names = re.findall(r"^  ([a-z-]+) ", commands.split("Options:")[0], re.MULTILINE)
    return [name for name in names if name != "help"]


def help_of(*verb: str) -> str:
    done = subprocess.run([TIDEMILL, *verb, "--help"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PluginError(f"tidemill {' '.join(verb)} --help: {done.stderr}")
    return done.stdout.rstrip()
