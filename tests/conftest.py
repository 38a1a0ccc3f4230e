"""Fixtures that the tests share: random generators, a run file, pairs, datasets and a trained run.

The tests may run in several processes of pytest-xdist with `--dist loadfile`. Expensive fixtures
are then made by the first process that needs them, and the others wait for it.
"""

import faulthandler
import fcntl
import json
import os
import random
import shutil
import signal

import pyarrow as pa
import pytest
import tidemill
from helpers import online, training
from helpers.pairs import encode_noise, pairs_settings, write_pairs

from benches.null_gpu import NullGpu


def pytest_configure(config):
    """Draws the seed of all random tests, which the processes of pytest-xdist inherit."""
    if not os.environ.get("TIDEMILL_SEED"):
        os.environ["TIDEMILL_SEED"] = str(random.SystemRandom().randrange(2**32))


def pytest_timeout_set_timer(item, settings):
    """Ends the tests like ctrl-c if one takes too long, so that all that it has started ends, too.

    `ray.get` would continue to wait through the exception of pytest-timeout, and Ray Train handles
    SIGINT itself.
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
    """The test has ended in time."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


@pytest.fixture(scope="session")
def make_rng():
    """Makes a generator from the seed TIDEMILL_SEED and a name, whatever tests ran before."""

    def make(name):
        print(f"TIDEMILL_SEED={os.environ['TIDEMILL_SEED']}")
        return random.Random(f"{os.environ['TIDEMILL_SEED']} {name}")

    return make


@pytest.fixture
def rng(make_rng, request):
    """A random generator of the test. Its seed is printed, and can be set by TIDEMILL_SEED."""
    return make_rng(request.node.name)


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """Fills a folder once for all test processes: `make_once(name, fill)` calls `fill(folder)`.

    It returns the folder and what `fill` returned, which must be JSON.
    """

    def make(name, fill):
        base = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            # The folder of the process lies in that of the whole run.
            base = base.parent
        folder, result = base / f"shared-{name}", base / f"shared-{name}.json"
        with (base / f"shared-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                result.write_text(json.dumps(fill(folder)))
        return folder, json.loads(result.read_text())

    return make


@pytest.fixture(scope="session")
def run():
    """A run file's content as mappings."""
    return {
        "source": {"columns": {"image": "jpg", "caption": "caption", "key": "key"}, "carry": ["score"]},
        "prepare": {"resolutions": [64, 32]},
        "models": {"path": str(training.ASSETS)},
        "encode": {"batch_size": 8},
        "engine": {"device": "cpu"},
    }


@pytest.fixture(scope="session")
def batch(make_rng):
    """Twenty pairs of noise images: one image is invalid, one too small, one caption is missing."""
    rng = make_rng("batch")
    images = [encode_noise(rng, rng.randrange(64, 200), rng.randrange(64, 200)) for _ in range(20)]
    captions = [f"picture {i}" for i in range(20)]
    images[3] = b"no image"
    captions[5] = None
    images[7] = encode_noise(rng, 31, 90)
    return pa.record_batch(
        {
            "key": pa.array([f"k{i}" for i in range(20)]),
            "caption": pa.array(captions),
            "jpg": pa.array(images, pa.binary()),
            "score": pa.array([rng.random() for _ in range(20)], pa.float64()),
        }
    )


@pytest.fixture(scope="session")
def dataset(make_once):
    """A small latent dataset of 64 x 64 pixels, made by the quickstart's models."""

    def fill(folder):
        tidemill.main(["synth", str(folder / "data"), "--rows", "120", "--files", "2", "-q"])
        names = ("source", "prepare.resolutions", "models.path")
        settings = {name: training.SETTINGS[name] for name in names}
        uri = f"{folder}/data/*.parquet"
        tidemill.preprocess({**settings, "source.uri": uri, "output": str(folder)})

    return make_once("dataset", fill)[0] / "dataset"


@pytest.fixture(scope="session")
def pairs_run(run, make_once, make_rng):
    """A run over pairs of 16 units, some of them damaged."""

    def fill(folder):
        write_pairs(folder, make_rng("pairs"), files=2, rows=200)

    return pairs_settings(run, make_once("pairs", fill)[0])


@pytest.fixture(scope="session")
def encoded_pairs(pairs_run, make_once):
    """The output of the local engine for those pairs, and its result."""
    return make_once("encoded-pairs", lambda folder: tidemill.preprocess(pairs_run, output=str(folder)))


@pytest.fixture(scope="session")
def scenes(make_once):
    """The URI of pairs of eight units."""

    def fill(folder):
        tidemill.main(["synth", str(folder), "--rows", "120", "--files", "8", "-q"])

    return f"{make_once('scenes', fill)[0]}/*.parquet"


@pytest.fixture(scope="session")
def trained_online(scenes, make_once):
    """The output of two workers that have trained on those pairs without a dataset."""

    def fill(folder):
        result = online.start_training(folder, scenes, "2").succeed()
        assert result["steps"] == online.STEPS
        assert not (folder / "dataset").exists()

    return make_once("trained-online", fill)[0]


@pytest.fixture(scope="session")
def gpu(tmp_path_factory):
    """A fake GPU that computes nothing."""
    return NullGpu(tmp_path_factory.mktemp("null-gpu"))
