"""Tests of the block proofs."""
