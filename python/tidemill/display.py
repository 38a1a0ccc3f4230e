"""How results, run files and streams show themselves: as a few lines, and as tables in notebooks."""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# A larger picture is only named: notebooks keep what they show.
MAX_PICTURE_BYTES = 4 << 20
# Nested values with more entries are folded.
MAX_ROWS = 8
BAR_PIXELS = 160


class Result(dict[str, Any]):
    """What a verb returns: a dict, which notebooks show as a table with its pictures."""

    def __repr__(self) -> str:
        """Lines of keys and values, the nested ones in one line of JSON each."""
        return "\n".join([self._title(), *(f"  {key}: {_to_text(value)}" for key, value in self._entries())])

    def _repr_html_(self) -> str:
        return to_table(self._title(), [(key, _to_html(key, value)) for key, value in self._entries()])

    def _title(self) -> str:
        return str(self.get("verb", "result"))

    def _entries(self) -> list[tuple[str, Any]]:
        """Without what is not there."""
        return [(key, value) for key, value in self.items() if key != "verb" and value not in (None, [], {})]


def to_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values; values are HTML."""
    cells = (
        f'<tr><th style="text-align:left;vertical-align:top">{html.escape(name)}</th>'
        f'<td style="text-align:left">{value}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{''.join(cells)}</table>"


def to_shorter_path(path: str) -> str:
    """A local path from the working directory, if that is shorter."""
    return path if not path or "://" in path else min(os.path.relpath(path), path, key=len)


def escape(value: Any) -> str:
    """A value as HTML."""
    return html.escape(_to_text(value))


def _to_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def _to_html(key: str, value: Any) -> str:
    """A value: pictures and bars where it has them, nested values as tables, long ones folded."""
    if key == "histograms":
        return "".join(_draw_histogram(bars) for bars in value.values() if isinstance(bars, Mapping))
    if isinstance(value, str):
        return _show_picture(Path(value)) if value.endswith(".png") else escape(value)
    if isinstance(value, Mapping):
        return _fold(len(value), _show_mapping(value))
    return _show_list(value) if isinstance(value, Sequence) else escape(value)


def _show_list(values: Sequence[Any]) -> str:
    pictures = [path for path in values if isinstance(path, str) and path.endswith(".png")]
    if pictures:
        return "<br>".join(_show_picture(Path(path)) for path in pictures)
    is_records = all(isinstance(value, Mapping) for value in values)
    return _fold(
        len(values), _show_records([("", value) for value in values]) if is_records else escape(values)
    )


def _fold(entries: int, text: str) -> str:
    """Folds what has many entries."""
    return f"<details><summary>{entries} entries</summary>{text}</details>" if entries > MAX_ROWS else text


def _show_mapping(values: Mapping[str, Any]) -> str:
    if all(isinstance(value, Mapping) for value in values.values()):
        return _show_records(list(values.items()))
    return "<br>".join(f"{html.escape(name)}: {_to_html(name, value)}" for name, value in _flatten(values))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _show_records(records: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Named records with the same keys, a row each. What is nested in them would be too wide."""
    entries = [item for _, record in records for item in record.items()]
    nested = {key for key, value in entries if isinstance(value, (Mapping, list))}
    columns = [key for key in dict.fromkeys(key for key, _ in entries) if key not in nested]
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{'' if record.get(key) is None else escape(record[key])}</td>" for key in columns)
        + "</tr>"
        for name, record in records
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _show_picture(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > MAX_PICTURE_BYTES:
        return html.escape(str(path))
    data = base64.b64encode(path.read_bytes()).decode()
    return f'{html.escape(str(path))}<br><img src="data:image/png;base64,{data}" style="max-width:640px">'


def _draw_histogram(bars: Mapping[str, Any]) -> str:
    """Bars between the first and the last that is not empty; nothing if all are."""
    counts, edges = bars["counts"], bars["edges"]
    filled = [i for i, count in enumerate(counts) if count]
    if not filled:
        return ""
    rows = []
    for i in range(filled[0], filled[-1] + 1):
        until = f" to {edges[i + 1]:g}" if i + 1 < len(edges) else " or more"
        width = round(BAR_PIXELS * counts[i] / max(counts))
        bar = f'<div style="background:#0b7285;height:0.8em;width:{width}px;display:inline-block"></div>'
        rows.append((f"{edges[i]:g}{until}", f"{bar} {counts[i]:,}"))
    return to_table(bars["name"], rows)
