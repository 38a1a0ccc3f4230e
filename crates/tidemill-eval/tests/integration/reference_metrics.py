"""Distances between sets of features, by other libraries and by brute force in double precision."""

import numpy as np
import torch
from pytorch_fid.fid_score import calculate_frechet_distance
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric
from torchmetrics.image.fid import FrechetInceptionDistance

SUBSETS, SUBSET_SIZE = 60, 80


class Identity(torch.nn.Module):
    """Passes features through the metric of torchmetrics as if they were images."""

    def __init__(self, width):
        super().__init__()
        self.num_features = width

    def forward(self, features):
        return features


def fid(generated, reference):
    statistics = [fid_features_to_statistics(features) for features in (generated, reference)]
    moments = [
        (x.double().numpy().mean(0), np.cov(x.double().numpy(), rowvar=False)) for x in (generated, reference)
    ]
    metric = FrechetInceptionDistance(feature=Identity(generated.shape[1]))
    metric.set_dtype(torch.float64)
    metric.update(reference.double(), real=True)
    metric.update(generated.double(), real=False)
    return dict(
        torch_fidelity=fid_statistics_to_metric(*statistics, verbose=False)["frechet_inception_distance"],
        pytorch_fid=float(calculate_frechet_distance(*moments[0], *moments[1])),
        torchmetrics=float(metric.compute()),
    )


def kid(generated, reference):
    options = dict(
        kid_kernel="poly", kid_kernel_poly_degree=3, kid_kernel_poly_gamma=None, kid_kernel_poly_coef0=1
    )
    options |= dict(verbose=False, rng_seed=1)
    everything = len(generated)
    whole = kid_features_to_metric(
        generated, reference[:everything], kid_subsets=1, kid_subset_size=everything, **options
    )
    parts = kid_features_to_metric(
        generated, reference[:everything], kid_subsets=SUBSETS, kid_subset_size=SUBSET_SIZE, **options
    )
    return dict(
        all=whole["kernel_inception_distance_mean"],
        mean=parts["kernel_inception_distance_mean"],
        std=parts["kernel_inception_distance_std"],
        subsets=SUBSETS,
        size=SUBSET_SIZE,
    )


def cmmd(x, y):
    """Jayasumana et al., 2024, equation 4, with the constants of the authors' code."""

    def mean_kernel(a, b):
        distances = ((a[:, None] - b[None]) ** 2).sum(-1)
        return np.exp(-distances / (2 * 10**2)).mean()

    return 1000 * (mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y))


def prdc(generated, reference, k):
    """The formulas of Kynkäänniemi et al., 2019, and Naeem et al., 2020, pair by pair."""

    def distances(a, b):
        return np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))

    x, y = generated.double().numpy(), reference.double().numpy()
    radii = [np.sort(distances(features, features), axis=1)[:, k] for features in (x, y)]
    pairs = distances(x, y)
    inside_reference = pairs <= radii[1][None]
    result = dict(
        precision=inside_reference.any(1).mean(),
        recall=(pairs <= radii[0][:, None]).any(0).mean(),
        density=inside_reference.sum() / (k * len(x)),
        coverage=inside_reference.any(0).mean(),
    )
    peer = prc_features_to_metric(
        generated.double(),
        reference.double(),
        prc_neighborhood=k,
        prc_batch_size=1000,
        save_cpu_ram=False,
        verbose=False,
    )
    for name in ("precision", "recall"):
        assert abs(peer[name] - result[name]) < 1e-6, (name, peer[name], result[name])
    return {name: float(value) for name, value in result.items()}


def compare(generated, reference):
    # KID's two sides have equal numbers of images, so that one subset can have all of them.
    return dict(
        fid=fid(generated, reference),
        kid=kid(generated, reference),
        prdc={str(k): prdc(generated, reference, k) for k in (3, 5)},
    )
