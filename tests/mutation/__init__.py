"""Mutates the tables of the publish protocol, one cell at a time, and lists what no test notices."""
