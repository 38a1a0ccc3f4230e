"""Helpers of the tests: training runs, processes, checkpoints, Ray clusters, pairs and denoisers."""
