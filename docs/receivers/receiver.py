"""A receiver that handles each digest once, whatever goes wrong on the way.

HOOK_SECRET=whsec_… python3 receiver.py
"""

import json
import os
import sqlite3
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from verify import NotVerified, verify


def handle(digest, store):  # yours: what it writes to `store` is committed together with the id, or not at all
    store.execute("INSERT INTO digests VALUES (?, ?, ?)", (digest["id"], digest["timeline"], digest["total"]))


class Receiver(BaseHTTPRequestHandler):
    timeout = 30  # for a client that sends half a post

    def do_POST(self):
        try:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length if 0 <= length <= 1 << 20 else 0)  # no digest is larger than max_body
            identity = verify(os.environ["HOOK_SECRET"].split(), self.headers, body)
            with closing(sqlite3.connect("digests.db", timeout=5)) as store, store:  # commits, or rolls back
                if store.execute("INSERT OR IGNORE INTO seen (id) VALUES (?)", (identity,)).rowcount:
                    handle(json.loads(body)["data"], store)
            status = 204  # also for a digest that was handled before: it is done
        except NotVerified:
            status = 401
        except Exception:
            status = 500  # nothing is written: it comes again, with the same id
        self.send_response(status)
        self.end_headers()


if __name__ == "__main__":
    with closing(sqlite3.connect("digests.db")) as store:
        store.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, at TEXT DEFAULT CURRENT_TIMESTAMP)")
        store.execute("CREATE TABLE IF NOT EXISTS digests (id TEXT, timeline TEXT, total INTEGER)")
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Receiver).serve_forever()
