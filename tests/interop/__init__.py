"""Real files, real sockets, real processes."""
