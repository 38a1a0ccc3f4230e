"""`make bench-nodes`: the bytes that two nodes send to each other, for each `train.sharding`.

Each node is a network namespace with two ranks, and a virtual cable connects them. Its bytes are counted
and compared with what a run says that it sends. Writes target/bench/nodes.json and redraws its part of
docs/benchmarks.md. It needs root, and `ip` of iproute2.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemill.run_file import to_command_line

from benches import overlap, report, runner
from benches.runner import BenchError, run_program

FOLDER = overlap.FOLDER
PAGE = overlap.PAGE
NODES, RANKS_PER_NODE = 2, 2
RANKS = NODES * RANKS_PER_NODE
SHARDINGS = ("full_shard", "shard_grad_op", "hybrid_shard", "none")
# Namespaces and their ends of the cable have the same names.
NAMES = [f"tidemill{node}" for node in range(NODES)]
ADDRESSES = [f"10.213.77.{node + 1}" for node in range(NODES)]
PORT = 29477


@dataclass(frozen=True)
class Run:
    """Megabytes of a step."""

    # What each rank sends of gradients and weights, as the run reports it.
    gradients_mb: float
    weights_mb: float
    # What a node sends to the other, as counted.
    sent_mb: float


def run_ip(command: str) -> str:
    return run_program("ip", *command.split())


@contextmanager
def connect_nodes() -> Iterator[None]:
    """Two namespaces with a cable between them, until the block ends."""
    with ExitStack() as stack:
        for name in NAMES:
            run_ip(f"netns add {name}")
            # This also removes the cable.
            stack.callback(run_ip, f"netns delete {name}")
        first, second = NAMES
        run_ip(f"link add {first} netns {first} type veth peer {second} netns {second}")
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            run_ip(f"-n {name} address add {address}/24 dev {name}")
            for link in ("lo", name):
                run_ip(f"-n {name} link set {link} up")
        yield


def sent_bytes() -> int:
    """Bytes that the first node has sent to the second so far, headers included."""
    counters = run_ip(f"netns exec {NAMES[0]} cat /proc/net/dev")
    [line] = [line for line in counters.splitlines() if line.strip().startswith(f"{NAMES[0]}:")]
    return int(line.split(":")[1].split()[8])


def start_rank(rank: int, arguments: list[str], log: Path) -> subprocess.Popen:
    node, place = divmod(rank, RANKS_PER_NODE)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": RANKS,
        "LOCAL_RANK": place,
        "LOCAL_WORLD_SIZE": RANKS_PER_NODE,
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": NAMES[node],
        "OMP_NUM_THREADS": 1,
    }
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    program = ["ip", "netns", "exec", NAMES[node], sys.executable, "-m", "tidemill"]
    command = [*program, "train", *arguments, "--json"]
    with log.open("a") as file:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file)


def train(sharding: str, steps: int) -> Run:
    output = FOLDER / "run"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    (output / "dataset").symlink_to(FOLDER / "dataset")
    settings = overlap.base_settings(output) | {
        "train.phase": [{"resolution": 64, "steps": steps}],
        "train.micro_batch": overlap.BATCH // RANKS,
        "train.sharding": sharding,
    }
    log = output / "stderr.log"
    ranks = [start_rank(rank, to_command_line(settings), log) for rank in range(RANKS)]
    try:
        metrics = output / "metrics.jsonl"
        counted = overlap.count_bytes_at_steps(metrics, (steps // 4, steps), ranks[0], sent_bytes)
        codes = [rank.wait(timeout=runner.LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes) or len(counted) != 2:
        raise BenchError(f"{sharding}: ranks ended with {codes}:\n{log.read_text()[-4000:]}")
    (first, before), (last, after) = counted
    gradients_mb, weights_mb = overlap.read_reported_traffic(log.read_text())
    return Run(gradients_mb, weights_mb, (after - before) / (last - first) / 1e6)


def least_between_nodes(sharding: str, runs: Mapping[str, Run]) -> float:
    """Megabytes that a node must send to the other in a step.

    In a ring of all ranks one rank of each node sends to the other node. With `hybrid_shard` each rank
    reduces its part of the gradients with the rank of the same place: 2 (M - 1) / M of an N-th of them on
    M nodes of N ranks.
    """
    if sharding != "hybrid_shard":
        return runs[sharding].gradients_mb + runs[sharding].weights_mb
    # Without sharding a rank sends 2 (R - 1) / R of all gradients.
    all_gradients = runs["none"].gradients_mb * RANKS / (2 * (RANKS - 1))
    return 2 * (NODES - 1) / NODES * all_gradients


def gloo_between_nodes(sharding: str, runs: Mapping[str, Run]) -> float:
    """The same over Gloo, whose reduce-scatter is an all-reduce and sends twice as much."""
    extra = runs[sharding].gradients_mb if sharding in ("full_shard", "shard_grad_op") else 0.0
    return least_between_nodes(sharding, runs) + extra


def format_table(runs: Mapping[str, Run]) -> str:
    columns = ["`train.sharding`", "each rank sends, MB", "between nodes, MB", "over Gloo, MB", "counted, MB"]
    rows = [
        [
            f"`{sharding}`",
            f"{run.gradients_mb + run.weights_mb:.1f}",
            f"{least_between_nodes(sharding, runs):.1f}",
            f"{gloo_between_nodes(sharding, runs):.1f}",
            f"{run.sent_mb:.1f}",
        ]
        for sharding, run in runs.items()
    ]
    return report.table(columns, rows)


def bench(args: argparse.Namespace) -> None:
    overlap.prepare(args.rows)
    with connect_nodes():
        runs = {sharding: train(sharding, args.steps) for sharding in SHARDINGS}
    versions, machine = runner.versions("torch"), runner.machine()
    if not args.quick:
        entry = {name: asdict(found) for name, found in runs.items()}
        report.write_json(runner.RESULTS / "nodes.json", [entry | {"versions": versions, "machine": machine}])
    head = f"{report.measured_on(machine, versions)} {args.steps} steps, without the first quarter."
    report.publish(PAGE, "bench-nodes", "\n\n".join([head, format_table(runs)]), args.quick)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=24)
    runner.main("bench-nodes", bench, parser, quick={"rows": 200, "steps": 8})


if __name__ == "__main__":
    main()
