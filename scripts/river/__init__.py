"""The way of one event and of one digest through the modules, traced at run time and drawn into docs/how-it-works.md.

    python -m scripts.river            prints both ways
    python -m scripts.river --write    writes them into the page (`make river`)

`nsqdigest run` itself is traced (trace.py) while it works on a few events one by one, with a real nsqd, a real Redis
and a log sink (ways.py). What it does when nothing happens is left out, and of the ways that remain the most frequent
one is drawn (picture.py).
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
