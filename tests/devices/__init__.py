"""Real file systems on a device that refuses writes for a while: `python -m tests.devices --rounds 100`."""
