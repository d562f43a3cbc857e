"""Fuzzers of all parsers of foreign bytes: short ones with hypothesis, long ones with atheris."""
