"""The peers of the benchmarks.

Each module does the whole work in a process of its own and prints one JSON object last, like
Tidemill's verbs.
"""
