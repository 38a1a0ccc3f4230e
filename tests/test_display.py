"""What results look like in notebooks and at a prompt."""

import tidemill
from tidemill import Result


def test_results_are_tables_with_pictures_and_bars(tmp_path):
    picture = tmp_path / "grid.png"
    picture.write_bytes(b"not really a picture")
    bars = {"name": "short side", "edges": [0, 64, 128], "counts": [0, 3, 1]}
    result = Result(
        verb="sample",
        grid=str(picture),
        rows={"read": 12345, "kept": 2},
        modes={"offline": {"hours": 1.5}, "online": {"hours": 2, "encoders": 3}},
        units=[{"key": f"<{i}>"} for i in range(9)],
        score=None,
        histograms={"rows": 4, "side": bars},
    )
    page = result._repr_html_()
    for expected in [
        "<caption>sample</caption>",
        "data:image/png;base64,bm90",
        "read: 12,345",
        "<tr><th>online</th><td>2</td><td>3</td></tr>",
        "<tr><th>offline</th><td>1.5</td><td></td></tr>",
        "<summary>9 entries</summary>",
        "&lt;0&gt;",
        "64 to 128",
        "128 or more",
    ]:
        assert expected in page, expected
    assert "score" not in page
    assert "0 to 64" not in page
    assert repr(result).splitlines()[:2] == ["sample", f"  grid: {picture}"]
    # A result is a dict: it can be compared, and written as JSON.
    assert result["rows"] == {"read": 12345, "kept": 2}


def test_runs_and_streams_name_what_matters(dataset):
    run = tidemill.resolve({"name": "mine", "source": {"uri": "s3://bucket/*.parquet"}})
    assert "name='mine'" in repr(run)
    assert "s3://bucket/*.parquet" in run._repr_html_()
    stream = tidemill.Stream(dataset, resolution=64, global_batch=4)
    assert f"rows={stream.rows}" in repr(stream)
    assert "<th" in stream._repr_html_()
    assert repr(next(stream)) == "Batch(number=0, latents=[4, 8, 8, 8] f16, text=[4, 77, 64] f16)"
