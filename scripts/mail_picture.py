"""Writes docs/pictures/mail.png: the mail of a sample digest, light and dark, narrow. It needs Chromium.

Run it after a change of `nsqdigest/delivery/mail/html.py` or `content.py`: `make mail-picture`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from email import message_from_bytes, policy
from html import escape
from pathlib import Path

from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.mail.addresses import mailbox
from nsqdigest.delivery.mail.addressing import Addressing
from nsqdigest.delivery.mail.compose import Composer, Letterhead

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "mail.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
WIDTH, HEIGHT = 380, 632
TIMEOUT, DECLINED = (
    {"kind": "TimeoutError", "message": "no answer from db-3 within 5 s"},
    {"kind": "CardDeclined", "message": "payment 1042 failed: card declined"},
)
EVENTS = [TIMEOUT, DECLINED, TIMEOUT, TIMEOUT]


def html() -> str:
    letterhead = Letterhead(mailbox("Alerts <alerts@example.com>"), Addressing([mailbox("ops@example.com")]))
    mail = Composer(letterhead)(digest_json(EVENTS, Names("events", "payments", "mail"), ("kind",)), {})
    part = message_from_bytes(mail.content, policy=policy.default).get_body(("html",))
    assert part is not None
    return str(part.get_content())


def page() -> str:
    frames = "".join(
        f'<iframe srcdoc="{escape(html())}" width="{WIDTH}" height="{HEIGHT}" '
        f'style="border:0;float:left;color-scheme:{scheme}"></iframe>'
        for scheme in ("light", "dark")
    )
    return f'<!DOCTYPE html><body style="margin:0">{frames}</body>'


def main() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"there is no Chromium here (looked for {', '.join(BROWSERS)})")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "mail.html"
        source.write_text(page(), encoding="utf-8")
        subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={2 * WIDTH},{HEIGHT}",
             f"--screenshot={PICTURE}", source.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    print(f"written: {PICTURE.relative_to(PICTURE.parents[2])}")


if __name__ == "__main__":
    main()
