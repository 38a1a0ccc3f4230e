"""Makes assets/: the quickstart's tiny frozen models, in the diffusers layout.

    cargo run --release -p tidemill-synth --example synth -- /tmp/scenes 40000 1
    cargo run --release -p tidemill-synth --example synth -- /tmp/scenes-test 2000 2
    cargo run --release -p tidemill-synth --example synth -- /tmp/scenes-heldout 2000 3 held_out
    cargo build --release -p tidemill-synth --example check
    .venv/bin/python scripts/make_assets.py \\
        --train /tmp/scenes --test /tmp/scenes-test --heldout /tmp/scenes-heldout

Each part can be made alone (`--only vae`), and `--report` measures what lies in assets/ without
training.
"""

import argparse
import time
from pathlib import Path

import torch

from assets import judge, layout, report, text, vae

ROOT = Path(__file__).resolve().parent.parent


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True, help="folder of scenes to train on")
    parser.add_argument("--test", type=Path, required=True, help="folder of scenes of another seed")
    parser.add_argument("--heldout", type=Path, required=True, help="folder of scenes of the held-out pairs")
    parser.add_argument("--out", type=Path, default=ROOT / "assets", help="folder to write")
    parser.add_argument(
        "--check", type=Path, default=ROOT / "target/release/examples/check", help="the checker"
    )
    parser.add_argument("--only", choices=["layout", "text", "vae", "judge"], help="make this part only")
    parser.add_argument("--report", action="store_true", help="train nothing, measure and write the README")
    parser.add_argument("--vae-steps", type=int, default=3500)
    parser.add_argument("--text-steps", type=int, default=1000)
    parser.add_argument("--judge-steps", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    parts = {
        "layout": lambda: layout.write_layout(args.out),
        "text": lambda: text.train(args.train, args.out, args.text_steps, args.seed),
        "judge": lambda: judge.train(args.train, args.out, args.judge_steps, args.seed),
        "vae": lambda: vae.train(args.train, args.test, args.out, args.vae_steps, args.seed),
    }
    if not args.report:
        for name in [args.only] if args.only else list(parts):
            start = time.time()
            parts[name]()
            print(f"{name}: {time.time() - start:.0f} s", flush=True)
    if args.report or not args.only:
        report.write(args)


if __name__ == "__main__":
    main()
