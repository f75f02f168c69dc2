"""The ready-made bodies, by the word that the file has for them."""

from __future__ import annotations

from collections.abc import Mapping

from nsqdigest.delivery.bodies.base import Body
from nsqdigest.delivery.bodies.slack import slack
from nsqdigest.delivery.bodies.teams import teams

DIGEST = "digest"
"""The digest's own JSON."""
SPACING_S: Mapping[str, float] = {"slack": 1.0}
"""Who takes no more than one message in such a time."""
FORMATS: Mapping[str, Body] = {"slack": slack, "teams": teams}
