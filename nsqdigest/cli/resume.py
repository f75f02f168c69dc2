"""`nsqdigest resume`: takes `pause` back."""

from __future__ import annotations

from nsqdigest.cli.pause import word_command

command = word_command(
    "resume",
    "is resumed",
    "was not paused",
    "Resume what was paused.",
    """Resume a topic, a route or a sink that `pause` paused. Needs admin.token.

    \b
    Example:
      nsqdigest resume topic events
    """,
)
