"""Reports of benches/: ratios, goals, the marked part of a page, and the chart."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benches import profiler_trace, report, runner

CASE = report.Case(
    name="A: pairs & pixels",
    unit="rows/s",
    ours=[1000.0, 3000.0, 1200.0],
    peers={"fast": [1000.0, 800.0, 1500.0], "slow": [100.0, 120.0, 90.0]},
    goals={"fast": 1.25, "slow": 2.4},
)


def test_ratios_are_ratios_of_medians():
    assert CASE.ratios == {"fast": pytest.approx(1.2), "slow": pytest.approx(12.0)}
    assert CASE.missed() == ["fast"]
    entry = json.loads(json.dumps(CASE.to_json()))
    assert (entry["ours"], entry["peers"]["slow"]) == (1200.0, 100.0)
    assert entry["runs"]["ours"] == [1000.0, 3000.0, 1200.0]


def test_comparison_has_row_with_goal_for_every_peer():
    rows = report.comparison([CASE]).splitlines()
    assert rows[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    assert rows[2] == "| A: pairs & pixels, rows/s | fast | 1,200 | 1,000 | 1.20x | 1.25x, missed |"
    assert rows[3] == "| A: pairs & pixels, rows/s | slow | 1,200 | 100 | 12.00x | 2.4x |"


def test_redraw_replaces_only_marked_part_of_page():
    page = "before\n<!-- x -->\nold\n<!-- /x -->\nafter\n<!-- y -->\n<!-- /y -->\n"
    once = report.replace_part(page, "x", "new")
    assert once == "before\n<!-- x -->\n\nnew\n\n<!-- /x -->\nafter\n<!-- y -->\n<!-- /y -->\n"
    assert report.replace_part(once, "x", "new") == once
    for broken in ["no marks", "<!-- x -->", "<!-- /x --><!-- x -->", page + page]:
        with pytest.raises(ValueError, match="x"):
            report.replace_part(broken, "x", "new")


def test_chart_bars_are_to_scale():
    chart = ET.fromstring(report.bar_chart("Rates <all>", [CASE]))
    bars = chart.findall("{*}rect[@rx]")
    ours, fast, slow = (float(bar.get("width")) for bar in bars)
    assert ours == pytest.approx(1.2 * fast, abs=0.1)
    assert fast == pytest.approx(10 * slow, abs=0.5)
    words = [element.text for element in chart.findall("{*}text")]
    assert "A: pairs & pixels, rows/s" in words
    assert max(float(bar.get("y")) + float(bar.get("height")) for bar in bars) < float(chart.get("height"))


def test_outcome_has_last_json_line_and_peak_memory():
    code = "x = bytearray(200 << 20); import time; time.sleep(0.2); print('noise'); print('{\"rate\": 7}')"
    outcome = runner.run(runner.Command([sys.executable, "-c", code], "rate"))
    assert outcome.result["rate"] == 7
    assert outcome.result["wall_s"] > 0.2
    assert 200 < outcome.peak_mib < 400


@pytest.mark.parametrize(
    ("code", "limit_s", "message"),
    [
        ("raise SystemExit('no such file')", 60, "no such file"),
        ("import time; time.sleep(60)", 1, "longer than 1 s"),
    ],
)
def test_failing_or_hanging_side_raises_bench_error(code, limit_s, message):
    with pytest.raises(runner.BenchError, match=message):
        runner.run(runner.Command([sys.executable, "-c", code], "rate"), limit_s)


def test_self_times_exclude_nested_operations(tmp_path: Path) -> None:
    def event(name: str, start: float, duration: float, thread: int = 1, category: str = "cpu_op") -> dict:
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread}

    events = [
        event("aten::linear", 0, 100),
        event("aten::addmm", 10, 80),
        event("aten::copy_", 20, 30),
        event("aten::mul", 120, 40),
        event("aten::silu", 120, 20, thread=2),
        event("no operation", 0, 1000, category="user_annotation"),
        {"ph": "M", "name": "process_name"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = profiler_trace.read_trace(path, steps=2)
    assert trace.wall == 0.08
    assert trace.by_name["aten::addmm"] == 0.025
    assert trace.by_kind == pytest.approx(
        {
            "matrix products": 0.035,
            "casts, copies, zeros": 0.015,
            "sums and products": 0.02,
            "SiLU and GELU": 0.01,
            "outside of operations": 0.0,
        }
    )


def test_median_trace_takes_median_of_each_operation():
    def trace(wall, calls, **by_name):
        return profiler_trace.Trace({"norms": wall / 2}, by_name, dict.fromkeys(by_name, calls), wall)

    # The traces differ in which operation is slowest.
    found = profiler_trace.medians(
        [trace(9.0, 4, a=1.0, b=7.0), trace(5.0, 4, a=3.0), trace(7.0, 5, a=2.0, b=5.0)]
    )
    assert (found.wall, found.by_kind) == (7.0, {"norms": 3.5})
    assert found.by_name == {"a": 2.0, "b": 5.0}
    assert found.calls == {"a": 4, "b": 4}
