"""Those who look at a daemon while it works: a scraper of its metrics, an open page, `nsqdigest status --watch`.

`python -m bench.delivery.observers ADDRESS` asks as they do, until it is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from bench.servers import installed_daemon, process

ASKED_EVERY_S = {"/metrics": 1.0, "/api/status": 2.0, "/api/history": 5.0, "/api/timelines?limit=50": 4.0}
"""Of the page what it asks for on its first view and on that of timelines; metrics fifteen times as often as usual."""


@contextmanager
def watching(folder: Path, admin: str) -> Iterator[None]:
    asking = [sys.executable, "-m", "bench.delivery.observers", admin]
    status = [installed_daemon(), "status", "--watch", "-c", str(folder / "daemon.toml")]
    with process(asking, folder, "asking.log"), process(status, folder, "status.log"):
        yield


def main() -> None:
    due_s = dict.fromkeys(ASKED_EVERY_S, 0.0)
    while True:
        for path, every_s in ASKED_EVERY_S.items():
            if time.monotonic() >= due_s[path]:
                due_s[path] = time.monotonic() + every_s
                with suppress(OSError), urlopen(f"http://{sys.argv[1]}{path}", timeout=10) as answer:
                    answer.read()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
