"""Make the API reference of `sluice.datastream` and `publishers.spark` from their docstrings: `make api`.

python docs/api.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import sluice.publishers.spark

if __name__ == "__main__":
    warnings.simplefilter("error")  # a name that cannot be documented is a mistake of ours
    # `from` is a word of Python, so the types of options with it have bases that are not classes.
    warnings.filterwarnings("ignore", r"Cannot determine where .*Options\.")
    # The names of this package are imported when they are asked for, and pdoc asks for none.
    vars(sluice.publishers.spark).update(
        {name: getattr(sluice.publishers.spark, name) for name in sluice.publishers.spark.__all__}
    )
    pdoc.render.configure(docformat="google", show_source=False, footer_text="Sluice, Apache-2.0")
    pdoc.pdoc("sluice.datastream", "sluice.publishers.spark", output_directory=Path(sys.argv[1]))
