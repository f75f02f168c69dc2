"""Events as publishers send them, sound and broken, for properties of whatever reads them."""

from __future__ import annotations

import json

from hypothesis import strategies as st

NOW_MS = 1_700_000_000_000
NAMES = ("user", "at", "kind", "a", "é")

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(NOW_MS - 1_000, NOW_MS + 1_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.datetimes().map(lambda moment: moment.isoformat() + "Z")
    | st.sampled_from(["error", 1, 1.5, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=10,
)
events = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), json_values, max_size=6)
written = st.builds(
    lambda event, ascii_only, indent: json.dumps(event, ensure_ascii=ascii_only, indent=indent),
    events,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
).map(lambda text: text.encode("utf-8", "surrogatepass"))


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Something near JSON: bytes of an event replaced, cut out or put in."""
    body = draw(written)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        length = draw(st.integers(0, 3))
        put_in = draw(
            st.binary(max_size=3)
            | st.sampled_from(
                [b"\\ud800", b"NaN", b"1e999", b"[[[[[[", b'"', b"\\", b"\xed\xa0\x80", b"-", b'{"user":']
            )
        )
        body = body[:start] + put_in + body[start + length :]
    return body


bodies = written | broken() | st.binary(max_size=60)

names = st.text(st.characters(categories=("L", "N", "P", "Cc", "Cf")), max_size=8) | st.integers() | st.booleans()
likely = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["error", "info", 1, True, 1.5]),
        "user": names | st.fixed_dictionaries({"a": names, "é": json_values}),
        "at": st.integers(NOW_MS - 10**9, NOW_MS) | st.sampled_from(["2023-11-14T22:13:20Z", "yesterday", None]),
        "a": names | json_values,
    },
).map(lambda event: json.dumps(event).encode("utf-8", "surrogatepass"))
"""Events of one publisher: routes that look for these fields take many of them."""
