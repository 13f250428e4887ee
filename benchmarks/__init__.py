"""Benchmarks: ratios against a floor measured in the same run. Never part of the tests."""
