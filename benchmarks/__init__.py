"""Benchmarks: each prints a ratio against a bare loop in the same run (`make bench`)."""
