"""Three nodes, publishers, readers, and a seeded script of faults; no acknowledged block may be lost."""
