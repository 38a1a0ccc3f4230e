"""What the tests of the Python module share: pairs, the quickstart's models, a run."""

import faulthandler
import io
import os
import random
import signal
from pathlib import Path

import online
import pairs
import pyarrow as pa
import pytest
import ranks
import tidemill
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


def pytest_timeout_set_timer(item, settings):
    """Ends the tests, as Ctrl-C does, when one takes too long, so that what it has started is
    ended, too.

    `ray.get` goes on waiting through what pytest-timeout would raise; and Ctrl-C itself is Ray
    Train's.
    """

    def interrupt(_signal, _frame):
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{item.nodeid} takes more than {settings.timeout:.0f} s", flush=True)
            faulthandler.dump_traceback()
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


def pytest_timeout_cancel_timer(item):
    """The test is over."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


@pytest.fixture(scope="session")
def rng():
    """A generator whose seed is printed, and can be set by TIDEMILL_SEED."""
    seed = int(os.environ.get("TIDEMILL_SEED") or random.SystemRandom().randrange(2**32))
    print(f"TIDEMILL_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def run():
    """A run file's content as mappings."""
    return {
        "source": {"columns": {"image": "jpg", "caption": "caption", "key": "key"}, "carry": ["score"]},
        "prepare": {"resolutions": [64, 32]},
        "models": {"path": str(ROOT / "assets")},
        "encode": {"batch_size": 8},
        "engine": {"device": "cpu"},
    }


@pytest.fixture(scope="session")
def batch(rng):
    """Twenty pairs of noise images: one is no image, one has no caption, one is too small."""

    def image(width, height):
        file = io.BytesIO()
        Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height)).save(file, "JPEG")
        return file.getvalue()

    images = [image(rng.randrange(64, 200), rng.randrange(64, 200)) for _ in range(20)]
    captions = [f"picture {i}" for i in range(20)]
    images[3] = b"no image"
    captions[5] = None
    images[7] = image(31, 90)
    return pa.record_batch(
        {
            "key": pa.array([f"k{i}" for i in range(20)]),
            "caption": pa.array(captions),
            "jpg": pa.array(images, pa.binary()),
            "score": pa.array([rng.random() for _ in range(20)], pa.float64()),
        }
    )


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A small latent dataset of 64 x 64 pixels, made by the quickstart's models."""
    folder = tmp_path_factory.mktemp("encoded")
    tidemill.main(["synth", str(folder / "data"), "--rows", "120", "--files", "2", "-q"])
    settings = {name: ranks.SETTINGS[name] for name in ("source", "prepare.resolutions", "models.path")}
    tidemill.preprocess({**settings, "source.uri": f"{folder}/data/*.parquet", "output": str(folder)})
    return folder / "dataset"


@pytest.fixture(scope="session")
def pairs_run(run, tmp_path_factory, rng):
    """A run over pairs of 16 units, some of them damaged."""
    folder = tmp_path_factory.mktemp("pairs")
    pairs.write(folder, rng, files=2, rows=200)
    return pairs.settings(run, folder)


@pytest.fixture(scope="session")
def encoded_pairs(pairs_run, tmp_path_factory):
    """What the local engine makes of them: the output, and the result that it tells."""
    output = tmp_path_factory.mktemp("local")
    return output, tidemill.preprocess(pairs_run, output=str(output))


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Pairs of eight units."""
    folder = tmp_path_factory.mktemp("scenes")
    tidemill.main(["synth", str(folder), "--rows", "120", "--files", "8", "-q"])
    return f"{folder}/*.parquet"


@pytest.fixture(scope="session")
def trained_online(scenes, tmp_path_factory):
    """What two workers make of them without a dataset."""
    output = tmp_path_factory.mktemp("online")
    run = online.training(output, scenes, "2")
    code, result = run.end()
    assert code == 0, run.said
    assert result["steps"] == online.STEPS
    assert not (output / "dataset").exists()
    return output
