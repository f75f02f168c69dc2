"""References: the whole value is `env:NAME` or `file:PATH` (pure).

Other tools write references in other ways, or within a text. Here such text would be the value itself: a password that
is "${PASSWORD}". Messages repeat nothing of the value but a variable's name.
"""

from __future__ import annotations

import re

_WHOLE = re.compile(
    r"""(?:\$\{(?P<shell>[A-Za-z_]\w*)\} | \$(?:env:)?(?P<bare>[A-Za-z_]\w*) | %(?P<windows>[A-Za-z_]\w*)%
      | \{\{\s*(?:env\s*"?\.?)?(?P<mustache>[A-Za-z_]\w*)"?\s*\}\} | \{(?:env\.|\$)(?P<caddy>[A-Za-z_]\w*)\}
      | \s*(?:env|ENV|Env):\s*(?P<spelled>[A-Za-z_]\w*)\s*)""",
    re.VERBOSE,
)
_WITHIN = (
    (re.compile(r"\benv:", re.IGNORECASE), "env: within the text is only text"),
    (re.compile(r"\bfile:(?!//)", re.IGNORECASE), "file: within the text is only text"),
    (re.compile(r"\$\{|\$\("), "${ is only text: nothing replaces it"),
)
_TEMPLATE = (re.compile(r"\{\{|<%|\{env\.|\{\$"), "this is a template of another tool: nothing fills it in")


def stray(text: str, *, is_template: bool = False) -> tuple[str, str] | None:
    """Problem and remedy of a text that is meant as a reference and is none. `is_template`: it may be one of ours, and
    who reads it knows those of other tools."""
    if whole := _WHOLE.fullmatch(text):
        name = next(filter(None, whole.groups()))
        return f"{name} is not looked up when it is written like this", f'write "env:{name}"'
    for pattern, problem in _WITHIN if is_template else (*_WITHIN, _TEMPLATE):
        if pattern.search(text):
            return problem, 'put the whole value into a variable and write "env:NAME" alone'
    return None
