"""Verifies posts of nsqdigest by the rules of Standard Webhooks. Python 3.9 or newer, nothing to install.

In a receiver: verify(secrets, headers, body), before anything else looks at the body. To try a post that you saved:

    HOOK_SECRET=whsec_… python3 verify.py WEBHOOK-ID WEBHOOK-TIMESTAMP WEBHOOK-SIGNATURE < body
"""

import base64
import hashlib
import hmac
import os
import sys
import time

TOLERANCE_S = 300


class NotVerified(Exception):
    """Answer 401 and do nothing else: nsqdigest tries again, so a wrong secret can still be corrected."""


def verify(secrets, headers, body, now_s=None):
    """Returns the digest's id, or raises NotVerified.

    secrets: each "whsec_…" that is valid now. headers: with a get() that takes names in lower case. body: the bytes as
    they came; JSON that was parsed and written again has other bytes.
    """
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    identity, timestamp, signatures = (headers.get(name) or "" for name in names)
    if not (identity and timestamp and signatures):
        raise NotVerified("a header is missing")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise NotVerified("webhook-timestamp is not a number of seconds")
    if abs((time.time() if now_s is None else now_s) - int(timestamp)) > TOLERANCE_S:
        raise NotVerified("webhook-timestamp is too far from this clock")
    signed = b".".join([identity.encode("utf-8", "replace"), timestamp.encode(), body])
    expected = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in map(_key, secrets)]
    for signature in signatures.split(" "):
        version, _, sent = signature.partition(",")
        # Of other versions than v1 this file knows nothing: they neither help nor harm.
        if version == "v1" and any(hmac.compare_digest(sent.encode("utf-8", "replace"), each) for each in expected):
            return identity
    raise NotVerified("no signature was made with a secret that is known here")


def _key(secret):
    prefix, _, encoded = secret.partition("_")
    try:
        key = base64.b64decode(encoded, validate=True) if prefix == "whsec" else b""
    except ValueError:
        key = b""
    if len(key) < 24:  # with an empty key everybody could sign
        raise ValueError("a secret is whsec_ and the base64 of 24 to 64 bytes")
    return key


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, identity, timestamp, signature = sys.argv
    given = {"webhook-id": identity, "webhook-timestamp": timestamp, "webhook-signature": signature}
    try:
        print("verified:", verify(os.environ["HOOK_SECRET"].split(), given, sys.stdin.buffer.read()))
    except NotVerified as error:
        sys.exit(f"not verified: {error}")
    except ValueError as error:
        sys.exit(str(error))
