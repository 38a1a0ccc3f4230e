"""Evaluation on a Ray cluster: evaluators as actors, which share the work among themselves."""
