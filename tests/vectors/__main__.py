"""Write the golden vectors anew: python -m tests.vectors. A change in them is a change of a format."""

from __future__ import annotations

import sys

from tests.vectors.maker import write_files

for name, size in write_files().items():
    sys.stdout.write(f"{name}: {size} bytes\n")
