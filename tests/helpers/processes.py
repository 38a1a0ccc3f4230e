"""Verbs in processes of their own, and what tests do to such processes while they run."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemill.run_file import to_command_line

from helpers import run_output, training


class VerbProcess:
    """A verb in a process of its own."""

    def __init__(self, verb, run, *flags, **overrides):
        command_line = to_command_line(run, **overrides)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", verb, *command_line, *flags, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_commits(self, output, count):
        """Waits until at least `count` units are committed."""
        while len(list(output.glob("dataset/commits/*"))) < count:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)

    def finish(self, seconds=280):
        """Waits for the end; returns the exit code, the result and the log."""
        out, err = self.process.communicate(timeout=seconds)
        assert out, err
        return self.process.returncode, json.loads(out.splitlines()[-1]), err

    def succeed(self, seconds=280):
        """Waits for the end, which must be a success; returns the result and the log."""
        code, result, log = self.finish(seconds)
        assert code == 0, log
        return result, log


class SupervisedTraining:
    """`tidemill train` with workers; `log` has the lines that it has written so far."""

    def __init__(self, output, workers, settings, flags=(), variables=None):
        output.mkdir(exist_ok=True)
        self.output = output
        arguments = training.train_arguments(output, settings)
        self.process = subprocess.Popen(
            [sys.executable, *arguments, "--workers", workers, "--json", *flags],
            env={**training.environment(), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As a terminal does: a process group of its own, which contains the workers, too.
            start_new_session=True,
        )
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def find_workers(self):
        """The process ids of the living workers, by rank."""
        found = {}
        for pid in list_children(self.process.pid):
            try:
                variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
                found[int(dict(v.split("=", 1) for v in variables if "=" in v)["RANK"])] = pid
            except (OSError, KeyError):
                pass
        return found

    def wait_for_step(self, step):
        """Waits for the metrics of a step."""
        wait_for_step(self.output, step, self.process, self.log)

    def finish(self, seconds=300):
        """Waits for the end; returns the exit code and the result."""
        self.process.wait(timeout=seconds)
        out = self.process.stdout.read()
        self.reader.join(timeout=10)
        return self.process.returncode, json.loads(out.splitlines()[-1])

    def succeed(self, seconds=300):
        """Waits for the end, which must be a success; returns the result."""
        code, result = self.finish(seconds)
        assert code == 0, self.log
        return result


def wait_for_step(output, step, process, log=(), seconds=120):
    """Waits until a process has written the metrics of a step."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if run_output.count_steps(output) >= step:
            return
        time.sleep(0.02)
    raise AssertionError("".join(log))


@contextmanager
def act_at_step(output, step, act):
    """Calls `act` in a thread once there are metrics of a step, which must happen in the block."""
    is_over, failures = threading.Event(), []

    def wait():
        try:
            while run_output.count_steps(output) < step:
                if is_over.wait(0.02):
                    return failures.append(f"step {step} did not come")
            act()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    is_over.set()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert not failures


def list_processes():
    """The parents of all processes, by process id."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # A process may end meanwhile. Its name, in parentheses, may contain spaces; the parent is
        # the second field after it.
        with suppress(OSError, IndexError):
            parents[int(pid)] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return parents


def list_children(pid):
    """The ids of the processes that a process has started."""
    return [child for child, parent in list_processes().items() if parent == pid]


def find_child(pid, name, seconds=120):
    """The id of a child process whose command line contains a name, once it has been started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for child in list_children(pid):
            try:
                if name in Path(f"/proc/{child}/cmdline").read_text():
                    return child
            except OSError:
                pass
        time.sleep(0.02)
    raise AssertionError(f"no process {name} was started")


def preload_c_code(folder, source):
    """Environment variables with which this C code replaces functions of the C library."""
    source = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n" + source
    library = folder / "preloaded.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"]
    subprocess.run(compiler, input=source, text=True, check=True)
    return {"LD_PRELOAD": str(library)}
