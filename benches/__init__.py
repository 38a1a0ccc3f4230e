"""Benchmarks against other libraries, in the same run on the same machine (docs/benchmarks.md)."""
