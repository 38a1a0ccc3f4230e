"""The notebooks run whole, with fewer rows and steps than they are stored with; ctrl-c ends a run cleanly."""

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
# For each notebook its parameters, the pictures that it shows, and words of its results.
RUNS = {
    "preprocessing": ({"ROWS": 500}, 3, ["quarantined", "short side, pixels", "Batch(number=0"]),
    "training": ({"ROWS": 200, "STEPS": 8}, 3, ["finished: False", "grid.png", "Stream(datasets="]),
    "online": ({"ROWS": 256, "STEPS": 3}, 1, ["colocated", "waiting for data", "recommended"]),
}


def list_outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def text_of(outputs):
    """All that a person reads: streams, and results as text and HTML."""
    parts = []
    for output in outputs:
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(parts)


def count_pictures(outputs):
    drawn = sum("image/png" in output.get("data", {}) for output in outputs)
    return drawn + text_of(outputs).count("data:image/png")


@pytest.mark.parametrize(
    "name",
    [
        "preprocessing",
        pytest.param("training", marks=pytest.mark.slow),
        pytest.param("online", marks=pytest.mark.slow),
    ],
)
def test_notebook_runs_whole(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    parameters, pictures, words = RUNS[name]
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    output = {"OUTPUT": str(tmp_path / "run")}
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in {**parameters, **output}.items())
    stored = list_outputs(notebook)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    # What is stored was looked at by a person.
    for outputs in (stored, list_outputs(notebook)):
        assert count_pictures(outputs) >= pictures
        text = text_of(outputs)
        assert all(word in text for word in words), text
        assert "\x1b[" not in text, "escape codes"
        assert not [output for output in outputs if output.output_type == "error"]


def test_interrupted_kernel_ends_training_after_a_checkpoint(dataset, tmp_path):
    settings = {
        "output": str(tmp_path),
        "models.path": str(NOTEBOOKS.parent / "assets"),
        "train.global_batch": 4,
        "train.micro_batch": 4,
        "prepare.resolutions": [64],
        "train.phase": [{"resolution": 64, "steps": 100_000}],
    }
    (tmp_path / "dataset").symlink_to(dataset)
    manager, client = start_new_kernel()
    try:
        code = f"""
            import tidemill
            done = tidemill.train({settings!r}, listener=lambda line: print("step", line["step"], flush=True))
            print("finished", done["finished"])
        """
        lines = []

        def interrupt_after_two_steps(message):
            lines.append(message["content"].get("text", ""))
            if "step 2" in lines[-1] and not any("interrupted" in line for line in lines):
                lines.append("interrupted")
                manager.interrupt_kernel()

        reply = client.execute_interactive(code, timeout=120, output_hook=interrupt_after_two_steps)
        assert reply["content"]["status"] == "ok", reply["content"]
        assert "finished False" in "".join(lines)
        assert list(tmp_path.glob("checkpoints/step-*/commit.json"))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
