"""Checks the structure of the tree, as part of `make lint`.

Files have at most 400 lines, pages have short lines, and no two Rust files of a crate import each
other, directly or in a ring.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 400
MOST_COLUMNS = 120


def tracked(*patterns):
    """The tracked files that match, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def long_files():
    for name in tracked("*.rs", "*.py", "*.cpp", "*.cu", "*.sh"):
        lines = len((ROOT / name).read_text().splitlines())
        if lines > MOST_LINES:
            yield f"{name}: {lines} lines, at most {MOST_LINES}: split it by subject"


def wide_lines():
    for name in tracked("*.md"):
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if len(line) > MOST_COLUMNS and not line.startswith("|") and "http" not in line:
                yield f"{name}:{number}: {len(line)} columns, at most {MOST_COLUMNS}: wrap it"


def without_tests_and_comments(text):
    text = re.sub(r"(?m)^#\[cfg\((?:all\()?test\b.*?\)\]\n(?:pub\S* )?mod \w+ \{.*?^\}", "", text, flags=re.S)
    text = re.sub(r"(?m)^#\[cfg\(test\)\]\n(?:pub\S* )?mod \w+;", "", text)
    return re.sub(r"//[^\n]*", "", text)


def use_paths(tree, prefix=()):
    """The paths that a `use` tree names: `a::{b, c::d as e}` gives (a, b) and (a, c, d)."""
    depth, start, parts = 0, 0, []
    for index, char in enumerate(tree):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(tree[start:index])
            start = index + 1
    for part in filter(str.strip, [*parts, tree[start:]]):
        head, brace, rest = part.partition("{")
        names = [name.strip() for name in head.split(" as ")[0].split("::") if name.strip()]
        if brace:
            yield from use_paths(rest.rsplit("}", 1)[0], (*prefix, *names))
        else:
            yield (*prefix, *names)


class Crate:
    """The modules of one crate, and which of its files import which."""

    def __init__(self, source):
        self.files, self.texts = {}, {}
        for name in tracked(f"{source}/*.rs"):
            path = Path(name).relative_to(source).with_suffix("")
            module = path.parts[:-1] if path.name in ("mod", "lib", "main") else path.parts
            if path.name != "main":
                self.files[module] = name
                self.texts[module] = without_tests_and_comments((ROOT / name).read_text())
        self.exports = {module: dict(self.uses(module, exported=True)) for module in self.files}

    def uses(self, module, exported=False):
        """(name, absolute path) of what a module imports, or only of what it hands on."""
        for visibility, tree in re.findall(r"\b(pub(?:\([\w\s:]+\))?\s+)?use\s+([^;]+);", self.texts[module]):
            if visibility or not exported:
                for path in use_paths(tree):
                    if absolute := self.absolute(module, path):
                        yield absolute[-1], absolute

    def absolute(self, module, path):
        if path[0] == "crate":
            return path[1:] or None
        if path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                module = module[:-1] if path[0] == "super" else module
                path = path[1:]
            return (*module, *path) or None
        return (*module, *path) if (*module, path[0]) in self.files else None

    def resolve(self, path, seen=()):
        """The module that defines what a path names; re-exports are followed."""
        module = path
        while module not in self.files:
            module = module[:-1]
        rest = path[len(module) :]
        onward = self.exports[module].get(rest[0]) if rest else None
        if onward and onward not in seen:
            return self.resolve((*onward, *rest[1:]), (*seen, onward))
        return module

    def imports(self, module):
        paths = [path for _, path in self.uses(module)]
        body = re.sub(r"\buse\s+[^;]+;", "", self.texts[module])
        for path in re.findall(r"\b((?:crate|super)(?:::\w+)+)", body):
            if absolute := self.absolute(module, tuple(path.split("::"))):
                paths.append(absolute)
        return {self.resolve(path) for path in paths} - {module}

    def circles(self):
        """Strongly connected files, by Tarjan's algorithm."""
        order, low, stack, found = {}, {}, [], []

        def visit(module):
            order[module] = low[module] = len(order)
            stack.append(module)
            for other in sorted(self.imports(module)):
                if other not in order:
                    visit(other)
                if other in stack:
                    low[module] = min(low[module], low[other])
            if low[module] == order[module]:
                circle = stack[stack.index(module) :]
                del stack[stack.index(module) :]
                if len(circle) > 1:
                    found.append(sorted(self.files[part] for part in circle))

        for module in self.files:
            if module not in order:
                visit(module)
        return found


def circles():
    for source in sorted({"/".join(name.split("/")[:3]) for name in tracked("crates/*/src/*.rs")}):
        for circle in Crate(source).circles():
            yield "files that import each other: " + ", ".join(circle)


def main():
    faults = [*long_files(), *wide_lines(), *circles()]
    print("\n".join(faults), file=sys.stderr)
    sys.exit(bool(faults))


main()
