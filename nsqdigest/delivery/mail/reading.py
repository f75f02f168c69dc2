"""A mail's bytes read back for people (pure): its headers and its plain text, as a mail program shows them."""

from __future__ import annotations

from email import message_from_bytes, policy


def for_people(content: bytes) -> str:
    message = message_from_bytes(content, policy=policy.default)
    headers = [
        f"{name}: {value}" for name, value in message.items() if not name.lower().startswith(("content-", "mime-"))
    ]
    lines = [*headers, ""]
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    if plain is not None:
        lines += str(plain.get_content()).replace("\r\n", "\n").rstrip("\n").split("\n")
    if html is not None:
        lines += ["", f"(and the same as HTML, {len(html.get_content().encode()):,} bytes)"]
    return "\n".join(lines)
