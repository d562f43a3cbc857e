"""Three nodes, publishers, readers, and a seeded script of faults: nothing acknowledged may be lost."""
