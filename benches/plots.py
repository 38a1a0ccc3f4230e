"""Charts of benches, each as SVG and PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

# Must come before pyplot, because there may be no screen.
matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benches.report import OUR_COLOUR, PEER_COLOUR, number

# Colours of published, sleeping and real modes.
SIDE_COLOURS = (PEER_COLOUR, "#66b2c0", OUR_COLOUR)
# Colours of measured and published ladders.
LADDER_COLOURS = (OUR_COLOUR, PEER_COLOUR, PEER_COLOUR)
DARK, LIMIT, OFFLINE = "#212529", "#868e96", "#e8590c"
STYLE = {
    "font.size": 10,
    "text.color": DARK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "tidemill",
}


def draw_scaling(
    stem: Path,
    online: Mapping[int, float],
    offline: Mapping[int, float],
    limit: float,
    pool: Sequence[tuple[float, int]],
    needed: int,
) -> None:
    """Draws rates by the number of encoders, and the size of a growing pool over time."""
    with pyplot.rc_context(STYLE):
        figure, (rates, sizes) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2))
        rates.plot(*zip(*offline.items(), strict=True), "s--", color=OFFLINE, label="offline, rows/s")
        rates.plot(*zip(*online.items(), strict=True), "o-", color=OUR_COLOUR, label="online, img/s trained")
        rates.axhline(limit, color=LIMIT, linestyle=":", zorder=3, label="trainers fed from memory")
        _describe(rates, "Throughput by encoders", "encoders", "per second")
        rates.legend(frameon=False, loc="lower right")
        times, counts = zip(*pool, strict=True)
        sizes.step(times, counts, where="post", color=OUR_COLOUR, label="encoders")
        sizes.axhline(needed, color=LIMIT, linestyle=":", zorder=3, label="what the trainers need")
        _describe(sizes, "A pool that finds its size", "seconds", "encoders")
        sizes.legend(frameon=False, loc="lower right")
        _save(figure, stem)


def draw_modes(stem: Path, sides: Mapping[str, Mapping[str, float]]) -> None:
    """Draws images/s of each mode relative to offline on the same side, labelled with images/s."""
    names = list(next(iter(sides.values())))
    width = 0.8 / len(sides)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(8, 4))
        for side, (label, rates) in enumerate(sides.items()):
            positions = [names.index(mode) + (side - (len(sides) - 1) / 2) * width for mode in rates]
            ratios = [rate / rates["offline"] for rate in rates.values()]
            bars = axes.bar(positions, ratios, width * 0.92, color=SIDE_COLOURS[side], label=label)
            axes.bar_label(bars, [number(rate) for rate in rates.values()], padding=2, fontsize=9)
        axes.set_xticks(range(len(names)), names)
        _describe(axes, "Images/s (on the bars) over those offline", "", "ratio to offline")
        axes.set_ylim(top=1.15)
        axes.legend(
            frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(sides), fontsize=9
        )
        _save(figure, stem)


def draw_ladders(stem: Path, ladders: Mapping[str, Mapping[str, float]]) -> None:
    """Draws a panel for each ladder of changes, with a bar for each."""
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(len(ladders), 1, figsize=(8, 2.4 * len(ladders)))
        for axes, (title, ladder), colour in zip(panels, ladders.items(), LADDER_COLOURS, strict=True):
            first = next(iter(ladder.values()))
            labels = [f"{number(rate)}  ({rate / first:.2f}x)" for rate in ladder.values()]
            bars = axes.barh(list(ladder), list(ladder.values()), color=colour, height=0.7)
            axes.bar_label(bars, labels, padding=3, fontsize=9)
            axes.invert_yaxis()
            axes.set_xlim(right=1.25 * max(ladder.values()))
            axes.set_title(title)
        _save(figure, stem)


def draw_bias(stem: Path, curve: Mapping[int, Mapping[str, float]]) -> None:
    """Draws each distance by the number of images, relative to that with the fewest."""
    counts = list(curve)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for name, colour in zip(curve[counts[0]], (OUR_COLOUR, OFFLINE), strict=True):
            values = [one[name] / curve[counts[0]][name] for one in curve.values()]
            axes.plot(counts, values, "o-", color=colour, label=name)
        axes.plot(counts, [counts[0] / n for n in counts], ":", color=LIMIT, label="1/N")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [f"{n:,}" for n in counts])
        _describe(axes, "Distance of scenes to other scenes, relative", "images", "")
        axes.legend(frameon=False)
        _save(figure, stem)


def draw_soak(
    stem: Path,
    memory: Sequence[tuple[float, float]],
    rates: Sequence[tuple[float, float, float]],
    interruptions: Sequence[tuple[float, str]],
) -> None:
    """Draws memory and rates by the rows done, and where processes ended early.

    `rates` has rows done, rows per second, and rows per convolution.
    """
    with pyplot.rc_context(STYLE):
        figure, (upper, middle, lower) = pyplot.subplots(3, 1, figsize=(9, 7.5), sharex=True)
        done, per_second, per_convolution = zip(*rates, strict=True)
        upper.plot(*zip(*memory, strict=True), ".", markersize=2, color=OUR_COLOUR)
        _describe(upper, "Resident memory of preprocess", "", "MiB")
        middle.plot(done, per_second, "o-", markersize=3, color=OUR_COLOUR)
        _describe(middle, "Rate", "", "rows/s")
        lower.plot(done, per_convolution, "o-", markersize=3, color=OUR_COLOUR)
        _describe(lower, "Rate at the same speed of the machine", "rows done", "rows per convolution")
        for rows, name in interruptions:
            for axes in (upper, middle, lower):
                axes.axvline(rows, color=OFFLINE, linestyle=":", zorder=0)
            lower.text(rows, 0, f" {name}", rotation=90, va="bottom", fontsize=8, color=OFFLINE)
        lower.xaxis.set_major_formatter("{x:,.0f}")
        _save(figure, stem)


def _describe(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e9ecef")
    axes.set_axisbelow(True)


def _save(figure: Figure, stem: Path) -> None:
    figure.tight_layout()
    # Without a date, so that equal figures give equal files.
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=144)
    pyplot.close(figure)
