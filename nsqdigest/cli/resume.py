"""`nsqdigest resume`: takes `pause` back."""

from __future__ import annotations

from nsqdigest.cli.pause import word_command

command = word_command(
    "resume",
    "resumed",
    "Go on with what was paused.",
    """Go on with a topic, a route or a sink where `pause` found it. Needs admin.token.

    \b
    Example:
      nsqdigest resume topic events
    """,
)
