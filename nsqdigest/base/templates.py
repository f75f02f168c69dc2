"""Templates over the fields of an event, `user:{user.id}`, and paths of fields, `user.id` (pure).

Invariants:
- A brace of a template always encloses a path. No text of another template language passes as literal text: it would
  put the events of all users into one timeline, or supersede each with the next.
- A path is names of objects' fields between dots. What a list holds cannot be named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELD = re.compile(r"\{([^{}]*)\}")
_NOT_IN_NAMES = re.compile(r"""[\x00-\x1f"'\\\[\](){}|<>*?]|^[$/]|![rsa]$""")
_FOREIGN = re.compile(
    r"""\{\{|\}\}          # Jinja, Handlebars, Go, GitHub
      | [$%]\{ | \$\(      # shells, Logstash
      | \{[%#] | <%        # Jinja's statements, ERB
      | %\([A-Za-z_]\w*\)s # Python
      | \$[A-Za-z_]        # shells, Perl
    """,
    re.VERBOSE,
)
_NAME_OF_FOREIGN = re.compile(
    r"""(?:\{\{-?|\$\{|%\{|\$\(|<%=?|%\(|\$)   # what opens it
        \s*[.$]*(?P<path>[A-Za-z_][\w.-]*)     # $.user, .user
        (?:[^{}()<>%]*?(?:-?\}\}|\}|\)s?|%>))? # filters, and what closes it
    """,
    re.VERBOSE,
)
_LIKE = 'write one like "user:{user.id}"'
_LONGEST_GUESS = 60


class TemplateError(ValueError):
    """Text that is no template or path. The message tells the problem, `remedy` what to write instead."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def check_path(text: str) -> tuple[str, ...]:
    """A path of a field, `a.b`, as its names."""
    names = tuple(text.split("."))
    if all(name and name == name.strip() and not _NOT_IN_NAMES.search(name) for name in names):
        return names
    what = "is not a path of a field"
    if re.search(r"\[\s*-?[0-9*]*\s*\]", text):
        what += ": what a list holds cannot be named"
    raise TemplateError(what, _remedy(_as_path(text), 'write it like "user.id"'))


def path_of(text: str) -> str:
    """The path that an option names, written as `meta.at` or as `{meta.at}`."""
    alone = _FIELD.fullmatch(text)
    if alone is None and ("{" in text or _FOREIGN.search(text)):
        template = text if not _FOREIGN.search(text) else _as_ours(text)
        fields = _FIELD.findall(template)
        guess = _as_path(fields[0]) if len(fields) == 1 else ""
        raise TemplateError("is a template where a field is named", _remedy(guess, 'write one like "meta.at"'))
    path = text if alone is None else alone.group(1)
    check_path(path)
    return path


def _remedy(guess: str, otherwise: str) -> str:
    """A guess is shown when it fits on the line of a message."""
    return f'write "{guess}"' if guess and guess.isprintable() and len(guess) <= _LONGEST_GUESS else otherwise


def _as_path(text: str) -> str:
    """What was probably meant, from JSONPath, jq, JSON pointers, indices and filters; "" where nobody knows."""
    bare = re.split(r"[|!]", text, maxsplit=1)[0].strip().removeprefix("$").replace("/", ".")
    bare = re.sub(r"""\[\s*["']([^"'\]]+)["']\s*\]""", r".\1", bare).strip(". ")
    names = bare.split(".")
    return bare if all(name and name == name.strip() and not _NOT_IN_NAMES.search(name) for name in names) else ""


def _as_ours(text: str) -> str:
    """A template of another language in ours, where that can be guessed."""
    return _NAME_OF_FOREIGN.sub(lambda match: "{" + match["path"].rstrip(".") + "}", text)


@dataclass(frozen=True, slots=True)
class Template:
    """Literal text and paths of fields, in order."""

    text: str
    parts: tuple[str | tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str, own: frozenset[str] = frozenset()) -> Template:
        """`own`: what may stand in braces beside paths."""
        if not text:
            raise TemplateError("is empty", _LIKE)
        if _FOREIGN.search(text):
            guess = _as_ours(text)
            is_ours = guess != text and not _FOREIGN.search(guess) and not re.search(r"[{}]", _FIELD.sub("", guess))
            raise TemplateError("is a template of another language", _remedy(guess if is_ours else "", _LIKE))
        parts: list[str | tuple[str, ...]] = []
        position = 0
        for found in _FIELD.finditer(text):
            try:
                path = (found.group(1),) if found.group(1) in own else check_path(found.group(1))
            except TemplateError as error:
                guess = _as_path(found.group(1))
                whole = f"{text[: found.start()]}{{{guess}}}{text[found.end() :]}" if guess else ""
                shown = found.group() if found.group().isprintable() else "{…}"
                problem = f'has "{shown[:_LONGEST_GUESS]}", which {error.problem}'
                raise TemplateError(problem, _remedy(whole, error.remedy)) from None
            parts += [text[position : found.start()], path]
            position = found.end()
        parts.append(text[position:])
        if lone := re.search(r"[{}]", "".join(part for part in parts if isinstance(part, str))):
            raise TemplateError(f'has a lone "{lone.group()}"', f"braces enclose a field: {_LIKE}")
        return cls(text, tuple(part for part in parts if part))

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        return tuple(part for part in self.parts if isinstance(part, tuple))

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(".".join(path) for path in self.paths)
