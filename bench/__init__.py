"""Measurements against peers, each one command: `python -m bench.NAME` from the root of the repository.

They use the servers of the tests, `support.servers`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
