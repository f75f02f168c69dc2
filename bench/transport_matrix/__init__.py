"""Which ways to nsqd this product and pynsq can go: one cell, one consumer process, a real nsqd.

The certificates, the auth server and nsqd are started by the helpers of the tests.
"""

import sys

from bench.servers import ROOT

sys.path.append(str(ROOT / "tests"))
