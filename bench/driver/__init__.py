"""Runs the benchmarks: `bench/run` is the way in, `__main__` the list of sections."""
