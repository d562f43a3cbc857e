"""Mutation tests of the publish protocol's tables."""
