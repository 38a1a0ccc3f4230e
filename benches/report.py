"""Reports of a benchmark: JSON, a part of docs/benchmarks.md, and a bar chart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from html import escape
from pathlib import Path
from statistics import median
from textwrap import fill

OURS = "Tidemill"
# Colours of the chart's bars, readable on white.
OUR_COLOUR, PEER_COLOUR = "#0b7285", "#b8c0c8"
WIDTH, LABELS, FIGURES = 860, 260, 90
BAR, GAP = 18, 6


@dataclass(frozen=True)
class Case:
    """A comparison: the figures of all sides in all runs. Higher is better."""

    name: str
    unit: str
    ours: Sequence[float]
    peers: Mapping[str, Sequence[float]]
    # The lowest ratio to a peer that is a success.
    goals: Mapping[str, float] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(figures) for name, figures in self.peers.items()}

    @property
    def ratios(self) -> dict[str, float]:
        """Tidemill's median divided by each peer's."""
        return {name: median(self.ours) / figure for name, figure in self.medians.items()}

    def missed(self) -> list[str]:
        """The peers whose goal was not reached."""
        return [name for name, goal in self.goals.items() if self.ratios[name] < goal]

    def to_json(self) -> dict:
        return {
            "case": self.name,
            "ours": median(self.ours),
            "unit": self.unit,
            "peers": self.medians,
            "ratios": self.ratios,
            "goals": dict(self.goals),
            "runs": {"ours": list(self.ours), **{name: list(runs) for name, runs in self.peers.items()}},
        }


def measured_on(machine: Mapping[str, object], versions: Mapping[str, str], verb: str = "Measured") -> str:
    """The first sentence of a report: date, machine and versions."""
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{verb} on {date.today()} on {machine['cores']} cores of {machine['cpu']} with {named}."


def write_json(path: Path, entries: Sequence[Mapping]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, indent=2) + "\n")


def publish(page: Path, name: str, body: str, quick: bool) -> None:
    """Replaces a part of a page; a quick run only prints it."""
    if quick:
        print(body)
    else:
        redraw(page, name, body)


def redraw(page: Path, name: str, body: str) -> None:
    """Replaces the part between ``<!-- name -->`` and ``<!-- /name -->`` of a Markdown page."""
    page.write_text(replace_part(page.read_text(encoding="utf-8"), name, body), encoding="utf-8")


def replace_part(text: str, name: str, body: str) -> str:
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(first) != 1 or text.count(last) != 1:
        raise ValueError(f"the page must have {first} and {last} once each")
    before, rest = text.split(first)
    if last not in rest:
        raise ValueError(f"{last} must come after {first}")
    after = rest.split(last)[1]
    return f"{before}{first}\n\n{wrap(body.strip())}\n\n{last}{after}"


def wrap(body: str) -> str:
    """Wraps the prose of Markdown text; tables, headings and images stay on their lines."""
    lines = (line if line[:1] in ("|", "#", "!") else fill(line, 100) for line in body.splitlines())
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> str:
    """A Markdown table; columns from `numbers_from` on are right-aligned."""
    rule = ["---" if column < numbers_from else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def comparison(cases: Sequence[Case]) -> str:
    """One row for each case and peer."""
    rows = []
    for case in cases:
        for peer, ratio in case.ratios.items():
            goal = case.goals.get(peer)
            wanted = "" if goal is None else f"{goal:g}x" + (", missed" if peer in case.missed() else "")
            figures = [number(median(case.ours)), number(case.medians[peer]), f"{ratio:.2f}x", wanted]
            rows.append([f"{case.name}, {case.unit}", peer, *figures])
    return table(["", "against", OURS, "the other", "ratio", "goal"], rows, numbers_from=2)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bar_chart(title: str, cases: Sequence[Case], ours: str = OURS) -> str:
    """An SVG with horizontal bars in a group for each case; lengths are to scale within a group."""
    parts, y = [], 20
    parts.append(text(12, y, title, size=15, bold=True))
    y += 14
    for case in cases:
        y += 24
        parts.append(text(12, y, f"{case.name}, {case.unit}", bold=True))
        y += 8
        bars = {ours: median(case.ours), **case.medians}
        longest = max(bars.values())
        for name, value in bars.items():
            length = (WIDTH - LABELS - FIGURES) * value / longest
            colour = OUR_COLOUR if name == ours else PEER_COLOUR
            parts.append(text(LABELS - 8, y + BAR - 5, name, anchor="end"))
            parts.append(
                f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
            )
            parts.append(text(LABELS + length + 6, y + BAR - 5, number(value)))
            y += BAR + GAP
    height = y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, size: int = 13, bold: bool = False, anchor: str = "start") -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} text-anchor="{anchor}" fill="#212529">'
        f"{escape(words)}</text>"
    )
