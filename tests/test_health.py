"""Ranks that are too slow or compute wrongly: found before the first step, and left out."""

import os
import signal
import time

import ranks


def supervised(output, dataset, steps, health=None, **options):
    ranks.link(output, dataset)
    settings = {
        "train.global_batch": 14,
        "train.micro_batch": 5,
        "train.phase": [{"resolution": 64, "steps": steps}],
        "train.health": health or {"exclude": True},
    }
    return ranks.Supervised(output, "2..3", settings, **options)


def test_a_rank_that_is_too_slow_is_left_out(dataset, tmp_path):
    run = supervised(tmp_path, dataset, 10, {"exclude": True, "slower_than": 5})
    while 1 not in run.workers():
        time.sleep(0.02)
    slow = run.workers()[1]
    # As a device that is throttled: a twentieth of the time, in slices shorter than what is timed.
    try:
        while run.process.poll() is None:
            os.kill(slow, signal.SIGSTOP)
            time.sleep(0.08)
            os.kill(slow, signal.SIGCONT)
            time.sleep(0.004)
    except ProcessLookupError:
        pass
    code, result = run.end()
    assert code == 0, run.said
    assert result["workers"] == 2, run.said
    assert "rank 1 is" in result["faults"][0]["fault"], result
    assert "slower" in result["faults"][0]["fault"], result


# The link of one of three ranks is slow.
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


def test_a_rank_with_a_slow_link_is_left_out(dataset, tmp_path):
    run = supervised(tmp_path, dataset, 5, variables=ranks.put_before_libc(tmp_path, SLOW_LINK))
    code, result = run.end()
    assert code == 0, run.said
    assert result["workers"] == 2, run.said
    (fault,) = result["faults"]
    assert "rank 1 is" in fault["fault"], result
    assert "slower than the others at exchanging data with its neighbours" in fault["fault"], result


# Python runs this as it starts: one of three ranks gets every matrix product wrong.
SICK_DEVICE = """
import os
if (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == ("1", "3"):
    import torch
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: a.new_zeros(a.shape[0], b.shape[1]), "CPU")
"""


def test_a_rank_that_computes_wrongly_is_left_out(dataset, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SICK_DEVICE)
    run = supervised(tmp_path, dataset, 5, variables={"PYTHONPATH": str(tmp_path)})
    code, result = run.end()
    assert code == 0, run.said
    assert result["workers"] == 2, run.said
    (fault,) = result["faults"]
    assert "rank 1 computes wrongly" in fault["fault"], result
