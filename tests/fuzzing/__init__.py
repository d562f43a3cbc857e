"""Fuzzers of what reads bytes from peers: short ones by hypothesis, long ones by atheris."""
