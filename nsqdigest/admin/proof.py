"""The proof that a command has the token, and the daemon's proof in return (pure).

    command                                                     daemon
    GET /api/nonce                                        ──▶
                                                          ◀──   a nonce
    POST /api/pause, authorization: Nsqdigest-Proof …     ──▶   checks nonce and proof
    checks the proof of the answer                        ◀──   the answer, nsqdigest-proof: …

Invariants:
- The token does not travel. A listener in the daemon's place gets the proof of one request. It cannot change that
  request, and its answer is not taken for the daemon's.
- A nonce is good for one request, to the process that made it, for `FRESH_S`. A proof that somebody recorded is worth
  nothing.
- Nobody without the token makes the daemon remember anything: a nonce vouches for itself.
- All comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re

SCHEME = "nsqdigest-proof"
"""The authorization header: `Nsqdigest-Proof NONCE SHA256-OF-THE-BODY PROOF`."""
HEADER = "nsqdigest-proof"
"""The header of the answer."""
NONCE_PATH = "/api/nonce"
FRESH_S = 30.0

_NONCE = re.compile(r"[0-9a-f]{1,16}\.[0-9a-f]{32}\.[0-9a-f]{64}")


def is_nonce(text: object) -> bool:
    return isinstance(text, str) and _NONCE.fullmatch(text) is not None


def body_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def authorization(token: bytes, nonce: str, method: str, target: str, body: bytes) -> str:
    """The header that proves one request."""
    hashed = body_hash(body)
    return f"Nsqdigest-Proof {nonce} {hashed} {_of_request(token, nonce, method, target, hashed)}"


class Shown:
    """The parts of an authorization header of this scheme."""

    def __init__(self, text: str) -> None:
        parts = text.split()
        self._is_whole = len(parts) == 3 and is_nonce(parts[0]) and text.isascii()
        self.nonce, self._body_hash, self._proof = parts if self._is_whole else ("", "", "")

    def proved(self, token: bytes, method: str, target: str) -> Proved | None:
        """None: another token made it, or none."""
        wanted = _of_request(token, self.nonce, method, target, self._body_hash)
        if not hmac.compare_digest(wanted, self._proof) or not self._is_whole:
            return None
        return Proved(token, self.nonce, self._body_hash)


class Proved:
    """A request with a valid proof: what its body has to be, and how its answer is proved."""

    def __init__(self, token: bytes, nonce: str, hashed: str) -> None:
        self._token = token
        self._nonce = nonce
        self._body_hash = hashed

    def is_of(self, token: bytes) -> bool:
        return hmac.compare_digest(self._token, token)

    def covers(self, body: bytes) -> bool:
        return hmac.compare_digest(body_hash(body), self._body_hash)

    def is_answer(self, status: int, body: bytes, shown: str) -> bool:
        """`shown`: the proof that came with an answer."""
        return shown.isascii() and hmac.compare_digest(self.of_answer(status, body), shown)

    def of_answer(self, status: int, body: bytes) -> str:
        return _mac(self._token, "answer", self._nonce, str(status), body_hash(body))


class Nonces:
    """The nonces of one process."""

    def __init__(self, key: bytes) -> None:
        """`key`: random, of this process alone."""
        self._key = key
        self._used_until_s: dict[str, float] = {}

    def make(self, now_s: float, random: bytes) -> str:
        """`random`: 16 bytes."""
        made = f"{int(now_s * 1000):x}.{random.hex()}"
        return f"{made}.{_mac(self._key, 'nonce', made)}"

    def use(self, nonce: str, now_s: float) -> bool:
        """Whether it is good. Only a request with a valid proof may use one."""
        made, _, mac = nonce.rpartition(".")
        if not hmac.compare_digest(mac, _mac(self._key, "nonce", made)):
            return False
        until_s = int(made.partition(".")[0], 16) / 1000 + FRESH_S
        self._used_until_s = {each: end_s for each, end_s in self._used_until_s.items() if end_s >= now_s}
        if until_s < now_s or nonce in self._used_until_s:
            return False
        self._used_until_s[nonce] = until_s
        return True


def _of_request(token: bytes, nonce: str, method: str, target: str, hashed: str) -> str:
    return _mac(token, "request", nonce, method, target, hashed)


def _mac(key: bytes, *parts: str) -> str:
    text = "\n".join(("nsqdigest", *parts)).encode("utf-8", "surrogateescape")
    return hmac.new(key, text, hashlib.sha256).hexdigest()
