"""What ends the processes of `make soak` early: kills, a disk that is full and a source that is gone."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benches.runner import BenchError, run_program

# Room on the small disk when it gets full.
ROOM = 256 << 10
# Attempts to make the disk smaller than what is written to it meanwhile.
ATTEMPTS = 100
IN_NAMESPACE = "TIDEMILL_SOAK_MOUNTS"


class Interruption(Protocol):
    """What ends a process early."""

    name: str
    # A part of the error that it must report; None if it cannot report one.
    message: str | None

    def begin(self, process: subprocess.Popen) -> None: ...

    def end(self) -> None: ...


class Kill:
    """SIGKILL."""

    name, message = "killed", None

    def begin(self, process: subprocess.Popen) -> None:
        process.kill()

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class MissingSource:
    """The source's folder is gone for a while."""

    folder: Path
    name, message = "source gone", "is gone now"

    @property
    def hidden_folder(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}-hidden_folder")

    def begin(self, process: subprocess.Popen) -> None:
        self.folder.rename(self.hidden_folder)

    def end(self) -> None:
        self.hidden_folder.rename(self.folder)


@dataclass(frozen=True)
class SmallDisk:
    """A disk in memory that is full for a while."""

    folder: Path
    # The size in bytes except when it is full.
    size: int
    name, message = "disk full", "free some space"

    def mount(self) -> None:
        self.folder.mkdir(parents=True)
        run_program("mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs", str(self.folder))

    def begin(self, process: subprocess.Popen) -> None:
        for _ in range(ATTEMPTS):
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            # Refused if more has been written meanwhile.
            if self.resize(used + ROOM).returncode == 0:
                return
        raise BenchError(f"{self.folder} could not be made smaller")

    def end(self) -> None:
        if self.resize(self.size).returncode != 0:
            raise BenchError(f"{self.folder} could not be made larger")

    def resize(self, size: int) -> subprocess.CompletedProcess:
        command = ["mount", "-o", f"remount,size={size}", str(self.folder)]
        return subprocess.run(command, capture_output=True, check=False)


def enter_private_mounts(module: str) -> bool:
    """Continues with mounts of its own, as a new process in this one's place; False if it may not."""
    if os.environ.get(IN_NAMESPACE):
        return True
    for variant in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        command = ["unshare", *variant]
        attempt = [*command, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
        if subprocess.run(attempt, capture_output=True, check=False).returncode == 0:
            again = [*command, sys.executable, "-m", module, *sys.argv[1:]]
            os.execvpe("unshare", again, {**os.environ, IN_NAMESPACE: "1"})
    return False
