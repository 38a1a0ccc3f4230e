"""FID of two folders by torch-fidelity. Usage: fid_torch_fidelity GENERATED REFERENCE WEIGHTS"""

import json
import sys

import torch
import torch_fidelity

from benches import runner


def main() -> None:
    generated, reference, weights = sys.argv[1:]
    torch.set_num_threads(runner.cores())
    found = torch_fidelity.calculate_metrics(
        input1=generated,
        input2=reference,
        fid=True,
        feature_extractor_weights_path=weights,
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=False,
        batch_size=32,
    )
    print(json.dumps({"fid": found["frechet_inception_distance"]}))


if __name__ == "__main__":
    main()
