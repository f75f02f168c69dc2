"""How often a fuzz test tries: a multiple of what the profile of hypothesis says (100, or 2,000 with `deep`)."""

from __future__ import annotations

from hypothesis import settings


def times(factor: int) -> settings:
    profile = settings.default
    assert profile is not None
    return settings(max_examples=factor * profile.max_examples)
