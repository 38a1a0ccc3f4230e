"""Ranks that are too slow or compute wrongly are found before the first step and excluded."""

import os
import signal
import time

import pytest
from helpers import processes, training


def supervised(output, dataset, steps, health=None, **options):
    training.link_dataset(output, dataset)
    settings = {
        **training.UNEVEN_BATCH,
        **training.phase(steps),
        "train.health": health or {"exclude": True},
    }
    return processes.SupervisedTraining(output, "2..3", settings, **options)


# Other tests on the same cores make the other ranks slow, too.
@pytest.mark.slow
def test_slow_rank_is_excluded(dataset, tmp_path):
    run = supervised(tmp_path, dataset, 10, {"exclude": True, "slower_than": 5})
    while 1 not in run.find_workers():
        time.sleep(0.02)
    slow = run.find_workers()[1]
    # Like a throttled device: it runs a twentieth of the time, in slices shorter than what is
    # timed.
    try:
        while run.process.poll() is None:
            os.kill(slow, signal.SIGSTOP)
            time.sleep(0.08)
            os.kill(slow, signal.SIGCONT)
            time.sleep(0.004)
    except ProcessLookupError:
        pass
    result = run.succeed()
    assert result["workers"] == 2, run.log
    assert "rank 1 is" in result["faults"][0]["fault"], result
    assert "slower" in result["faults"][0]["fault"], result


# Slows down the link of one of three ranks.
SLOW_LINK = """
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
ssize_t writev(int file, const struct iovec *parts, int n) {
    ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
    const char *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    int kind;
    socklen_t size = sizeof kind;
    int slow = rank && world && !strcmp(rank, "1") && !strcmp(world, "3");
    if (slow && !getsockopt(file, SOL_SOCKET, SO_TYPE, &kind, &size)) usleep(20000);
    return real(file, parts, n);
}
"""


@pytest.mark.slow
def test_rank_with_slow_link_is_excluded(dataset, tmp_path):
    run = supervised(tmp_path, dataset, 5, variables=processes.preload_c_code(tmp_path, SLOW_LINK))
    result = run.succeed()
    assert result["workers"] == 2, run.log
    (fault,) = result["faults"]
    assert "rank 1 is" in fault["fault"], result
    assert "slower than the others at exchanging data with its neighbours" in fault["fault"], result


# Python runs this at its start: one of three ranks computes every matrix product wrongly.
FAULTY_DEVICE = """
import os
if (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == ("1", "3"):
    import torch
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: a.new_zeros(a.shape[0], b.shape[1]), "CPU")
"""


def test_rank_that_computes_wrongly_is_excluded(dataset, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAULTY_DEVICE)
    run = supervised(tmp_path, dataset, 5, variables={"PYTHONPATH": str(tmp_path)})
    result = run.succeed()
    assert result["workers"] == 2, run.log
    (fault,) = result["faults"]
    assert "rank 1 computes wrongly" in fault["fault"], result
