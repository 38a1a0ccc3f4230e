"""Azure Blob Storage, as Azurite emulates it: `make test-stores`.

Sources, datasets and checkpoints are on az://. Processes are killed, requests fail, answers are lost.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from helpers import azurite as emulator
from helpers import faulty_proxy, run_output, training
from helpers.faulty_proxy import BREAK_BODY, LOSE_ANSWER, REFUSE
from helpers.pairs import pairs_settings, write_pairs
from tidemill.run_file import to_command_line

pytestmark = pytest.mark.stores

ROOT = Path(__file__).resolve().parent.parent
# The binary starts faster than `python -m tidemill`.
TIDEMILL = str(Path(sys.executable).with_name("tidemill"))
# Of the whole workspace, as in the Makefile, so that cargo compiles nothing anew.
CARGO_TEST = ["cargo", "test", "--release", "--locked", "--workspace", "--test", "integration"]
WRONG_KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
# One request in so many fails.
FAULTY = 4
STEPS = 16


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with emulator.serve(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def proxy(azurite):
    """A proxy in front of the server."""
    with faulty_proxy.serve(azurite.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def pairs(azurite, run, make_rng, tmp_path_factory):
    """The settings of a run over pairs of 16 units on az://, with output there, too."""
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, make_rng("pairs"), files=2, rows=200)
    azurite.make_container("pairs", folder)
    azurite.make_container("out")
    return {**pairs_settings(run, folder), "source.uri": "az://pairs/*.parquet"}


@pytest.fixture(scope="module")
def digest(azurite, pairs, tmp_path_factory):
    """The digest of the dataset that an undisturbed run writes to a disk."""
    output = tmp_path_factory.mktemp("local")
    run_verb("preprocess", {**pairs, "output": str(output)}, azurite.variables())
    return find_digest(output, azurite.variables())


def start_verb(verb, settings, variables, *flags):
    command = [TIDEMILL, verb, *to_command_line(settings), *flags, "--json"]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, seconds=240):
    """Waits for the end; returns the exit code, the result and the log."""
    out, log = process.communicate(timeout=seconds)
    return process.returncode, json.loads(out.splitlines()[-1]) if out else {}, log


def run_verb(verb, settings, variables, *flags):
    """Runs a verb, which must succeed; returns its result."""
    code, result, log = finish(start_verb(verb, settings, variables, *flags))
    assert code == 0, log
    return result


def find_digest(output, variables):
    """The digest of an output's dataset, after a check of every checksum."""
    command = [TIDEMILL, "inspect", f"{output}/dataset", "--verify", "--json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["digest"]


def wait_until(what, condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def draw_faults(rng, faults, share=FAULTY):
    """Finds one of some faults for one request in so many, in any thread."""
    lock = threading.Lock()

    def find(_method, _path):
        with lock:
            return rng.choice(faults) if rng.randrange(share) == 0 else None

    return find


def test_library_on_azure(azurite):
    """Racing conditional puts, pages of keys, parts, ranges, deletes, and a missing container."""
    azurite.make_container("library")
    assert count_library_tests(azurite.variables(TIDEMILL_TEST_AZURE="az://library")) == 5


def test_library_on_azure_with_failing_requests(azurite, proxy, rng):
    """The same where requests fail. No answer to a put is lost, so that one put of a race wins."""
    azurite.make_container("faulty-library")
    proxy.find_fault = draw_faults(rng, [500, 503, 429, REFUSE, BREAK_BODY], share=20)
    variables = azurite.variables(proxy.server_port, TIDEMILL_TEST_AZURE="az://faulty-library")
    assert count_library_tests(variables) == 5
    print(f"{proxy.count_faults()} of {len(proxy.requests)} requests failed")
    assert proxy.count_faults() > 100


def count_library_tests(variables):
    """Runs the Rust tests; returns how many have passed."""
    command = [*CARGO_TEST, "azure", "--", "--ignored"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("... ok")


def test_killed_run_on_azure_resumes_with_the_missing_units(azurite, pairs, digest):
    """No unit is done twice, and gc removes what the killed process has left."""
    settings = {**pairs, "output": "az://out/killed"}
    process = start_verb("preprocess", settings, azurite.variables())
    commits = "out/killed/dataset/commits"
    wait_until("two commits", lambda: len(azurite.list_keys(commits)) >= 2, process)
    kill(process)
    before = len(azurite.list_keys(commits))
    units = run_verb("preprocess", settings, azurite.variables())["units"]
    assert units["done"] + before == units["total"]
    assert find_digest("az://out/killed", azurite.variables()) == digest
    run_verb("gc", settings, azurite.variables(), "--older-than-hours", "0")
    again = run_verb("gc", settings, azurite.variables(), "--older-than-hours", "0")
    assert again["removed"]["objects"] == 0
    assert find_digest("az://out/killed", azurite.variables()) == digest


def test_two_processes_on_azure_make_the_dataset_of_one(azurite, pairs, digest):
    """They race for the commits of the same units."""
    settings = {**pairs, "output": "az://out/together"}
    processes = [start_verb("preprocess", settings, azurite.variables()) for _ in range(2)]
    for code, _, log in map(finish, processes):
        assert code == 0, log
    assert find_digest("az://out/together", azurite.variables()) == digest


def test_run_on_azure_survives_random_faults(azurite, proxy, pairs, digest, rng):
    """The dataset is that of an undisturbed run."""
    proxy.find_fault = draw_faults(rng, [500, 503, 429, REFUSE, LOSE_ANSWER, BREAK_BODY])
    settings = {**pairs, "output": "az://out/faulty"}
    run_verb("preprocess", settings, azurite.variables(proxy.server_port))
    print(Counter(request.fault for request in proxy.requests))
    assert proxy.count_faults() >= 10
    assert find_digest("az://out/faulty", azurite.variables()) == digest


def test_commits_to_azure_whose_answers_are_lost_count_once(azurite, proxy, pairs, digest):
    """A process whose commit went through without an answer takes it for its own."""
    seen = set()

    def lose_first_answer(method, path):
        is_first = method == "PUT" and "/commits/" in path and path not in seen
        seen.add(path)
        return LOSE_ANSWER if is_first else None

    proxy.find_fault = lose_first_answer
    settings = {**pairs, "output": "az://out/lost"}
    units = run_verb("preprocess", settings, azurite.variables(proxy.server_port))["units"]
    assert proxy.count_faults() == units["total"] == units["done"]
    assert find_digest("az://out/lost", azurite.variables()) == digest


@pytest.mark.parametrize(
    ("settings", "variables", "expected"),
    [
        (
            {},
            {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="},
            ["cannot list az://pairs", "AZURE_STORAGE_ACCOUNT_KEY"],
        ),
        ({"source.uri": "az://none/*.parquet"}, {}, ["az://none", "there is no such bucket"]),
        ({"output": "az://none/out"}, {}, ["az://none/out", "there is no such bucket"]),
    ],
    ids=["wrong key", "no container to read", "no container to write"],
)
def test_refusals_of_azure_are_reported_with_advice(azurite, pairs, settings, variables, expected):
    settings = {**pairs, "output": "az://out/refused", **settings}
    code, result, log = finish(start_verb("preprocess", settings, azurite.variables(**variables)))
    assert code in (1, 2), log
    message = result["error"]["message"]
    assert all(part in message for part in expected), message


@pytest.fixture(scope="module")
def trained(azurite, pairs, digest, tmp_path_factory):
    """The settings of trainings on a dataset on az://, and the weights of one with local checkpoints."""
    run_verb("preprocess", {**pairs, "output": "az://out/trained"}, azurite.variables())
    azurite.make_container("checkpoints")
    mix = [{"name": "pairs", "dataset": "az://out/trained/dataset", "proportion": 1.0}]
    small = {"train.global_batch": 8, "train.micro_batch": 8, "checkpoint.every": 4}
    settings = {**pairs, **training.SETTINGS, **training.phase(STEPS), **small, "train.mix": mix}
    settings |= {"prepare.resolutions": pairs["prepare"]["resolutions"], "source.uri": pairs["source.uri"]}
    local = {**settings, "output": str(tmp_path_factory.mktemp("trained"))}
    run_verb("train", local, train_variables(azurite))
    return settings, export_weights(local, train_variables(azurite))


def train_variables(azurite, port=None):
    return azurite.variables(port, OMP_NUM_THREADS="1")


def export_weights(settings, variables):
    to = Path(settings["output"]) / "exported"
    run_verb("export", settings, variables, "--to", str(to))
    return (to / "unet/diffusion_pytorch_model.safetensors").read_bytes()


def test_training_resumes_from_a_checkpoint_on_azure(azurite, trained, tmp_path):
    """The weights are those of a run without a kill, bit for bit."""
    settings, weights = trained
    settings = {**settings, "output": str(tmp_path), "checkpoint.uri": "az://checkpoints/killed"}
    process = start_verb("train", settings, train_variables(azurite))
    wait_until("a checkpoint", lambda: "commit.json" in str(azurite.list_keys("checkpoints/killed")), process)
    kill(process)
    result = run_verb("train", settings, train_variables(azurite))
    assert result["steps"] == STEPS
    assert result["resumed_at"] >= 4
    assert export_weights(settings, train_variables(azurite)) == weights
    assert not (tmp_path / "checkpoints").exists()


def test_training_survives_an_outage_of_azure(azurite, proxy, trained, tmp_path):
    """It continues while no checkpoint can be written, and writes one afterwards."""
    settings, weights = trained
    settings = {**settings, "output": str(tmp_path), "checkpoint.uri": "az://checkpoints/outage"}
    is_over = threading.Event()
    # Expired credentials are an outage that is not retried.
    proxy.find_fault = lambda method, path: (
        None if is_over.is_set() or "checkpoints" not in path or run_output.count_steps(tmp_path) < 1 else 403
    )
    process = start_verb("train", settings, train_variables(azurite, proxy.server_port))
    wait_until("some steps", lambda: run_output.count_steps(tmp_path) >= 12, process)
    is_over.set()
    code, result, log = finish(process)
    assert (code, result.get("steps")) == (0, STEPS), log
    assert "cannot be written" in log
    assert proxy.count_faults() > 0
    assert export_weights(settings, train_variables(azurite)) == weights
