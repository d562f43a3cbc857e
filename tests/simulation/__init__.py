"""Deterministic simulations."""
