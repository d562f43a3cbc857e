"""Fuzzers of the parsers of foreign bytes: short ones by hypothesis, long ones by atheris."""
