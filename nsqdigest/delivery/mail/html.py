"""A mail's HTML (pure): tables and inline styles, because that is what every mail program shows.

Invariants:
- Whatever comes from a digest is escaped: it enters through a `Fragment` alone.
- Nothing is loaded from elsewhere and nothing runs: no image, no font, no script, no link but the one to unsubscribe.
- It is readable from 320 px on, light and dark: colours stand inline for programs that read no styles, and in classes
  for those that know the reader's wish.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from markupsafe import Markup

from nsqdigest.delivery.bodies.message import GroupCount
from nsqdigest.delivery.mail.content import Content, Event
from nsqdigest.delivery.mail.fragment import Fragment

_FONT = "font-family:-apple-system,BlinkMacSystemFont,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
_BREAK = "overflow-wrap:anywhere;word-break:break-word"


def _fragment(text: str) -> Fragment:
    return Fragment(text, font=_FONT, mono=_MONO, broken=_BREAK)


_HEAD = _fragment("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="supported-color-schemes" content="light dark">
<meta name="format-detection" content="telephone=no, date=no, address=no, email=no">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; supported-color-schemes: light dark; }}
@media (prefers-color-scheme: dark) {{
  .page {{ background: #14171c !important; }}
  .card {{ background: #1d2128 !important; border-color: #333a45 !important; }}
  .main {{ color: #e8ebf0 !important; }}
  .soft {{ color: #9aa4b2 !important; }}
  .line {{ border-color: #333a45 !important; }}
  .full {{ background: #5b93f0 !important; }}
  .rest {{ background: #2a303a !important; }}
  .kind {{ color: #b9c7dd !important; background: #2a303a !important; }}
}}
@media (max-width: 480px) {{
  .edge {{ padding-left: 16px !important; padding-right: 16px !important; }}
  .name, .value {{ display: block !important; width: auto !important; }}
  .name {{ padding-bottom: 0 !important; }}
  .at {{ display: block !important; width: auto !important; padding-bottom: 0 !important; }}
  .what {{ display: block !important; border-top: 0 !important; padding-top: 0 !important; }}
}}
</style>
</head>
""")
_BODY = _fragment("""\
<body class="page" style="margin:0;padding:0;background:#f3f5f8;-webkit-text-size-adjust:100%">
<div style="display:none;max-height:0;max-width:0;overflow:hidden;opacity:0;mso-hide:all">{preheader}{filler}</div>
<table role="presentation" class="page" width="100%" cellpadding="0" cellspacing="0" border="0" \
style="background:#f3f5f8"><tr><td align="center" style="padding:16px 8px">
<table role="presentation" class="card" width="100%" cellpadding="0" cellspacing="0" border="0" \
style="max-width:640px;table-layout:fixed;background:#ffffff;border:1px solid #dfe4ea;border-radius:8px;\
border-collapse:separate;text-align:left;{font}">
{rows}</table>
</td></tr></table>
</body>
</html>
""")
_FILLER = Markup("&#847;&zwnj;&nbsp;" * 60)
"""Behind a short preheader: else programs go on with the first words of the mail."""
_ROW = _fragment('<tr><td class="edge" style="padding:{padding}">\n{inner}</td></tr>\n')
_TITLE = _fragment("""\
<div class="soft" dir="auto" style="font-size:13px;line-height:18px;color:#5c6773;{broken}">{route}</div>
<h1 class="main" dir="auto" style="margin:2px 0 6px;font-size:22px;line-height:28px;font-weight:600;color:#16191f;\
{broken}">{timeline}</h1>
<div class="main" style="font-size:15px;line-height:22px;color:#16191f"><strong>{headline}</strong>\
<span class="soft" style="color:#5c6773"> &middot; {span}</span></div>
""")
_TABLE = _fragment("""\
<table role="presentation" width="100%" cellpadding="0" cellspacing="0" border="0" style="table-layout:fixed">
{rows}</table>
""")
_GROUP = _fragment("""\
<tr><td class="main" dir="auto" style="padding:4px 12px 2px 0;font-size:15px;line-height:20px;color:#16191f;{broken}">\
{name}</td>
<td class="main" align="right" width="72" style="padding:4px 0 2px;font-size:15px;line-height:20px;font-weight:600;\
color:#16191f;white-space:nowrap">{records}</td></tr>
<tr><td colspan="2" style="padding:0 0 6px"><table role="presentation" width="100%" cellpadding="0" cellspacing="0" \
border="0"><tr><td class="full" width="{share}%" style="height:4px;font-size:0;line-height:4px;background:#2f6fde;\
border-radius:2px">&nbsp;</td>{rest}</tr></table></td></tr>
""")
_REST = Markup('<td class="rest" style="height:4px;font-size:0;line-height:4px;background:#e8ecf2">&nbsp;</td>')
_EVENT = _fragment("""\
<tr><td class="at line soft" width="{width}" valign="top" style="padding:8px 12px 8px 0;border-top:1px solid #e6eaef;\
font-size:13px;line-height:20px;color:#5c6773;white-space:nowrap">{at}</td>
<td class="what line main" dir="auto" valign="top" style="padding:8px 0;border-top:1px solid #e6eaef;font-size:15px;\
line-height:20px;color:#16191f;{broken}">{line}{group}</td></tr>
""")
_KIND = _fragment(
    ' <span class="kind" dir="auto" style="font-size:12px;line-height:16px;color:#3d5170;background:#eef2f8;'
    'border-radius:3px;padding:1px 5px">{group}</span>'
)
_FIELD = _fragment("""\
<tr><td class="name soft" dir="auto" width="130" valign="top" style="padding:3px 12px 3px 0;font-size:13px;\
line-height:18px;color:#5c6773;{broken}">{name}</td>
<td class="value main" dir="auto" valign="top" style="padding:3px 0;font-size:13px;line-height:18px;color:#16191f;\
white-space:pre-wrap;{mono};{broken}">{value}</td></tr>
""")
_NOTES = _fragment('<div class="soft" style="font-size:13px;line-height:20px;color:#5c6773;{broken}">{lines}</div>\n')
_FOOT = _fragment("""\
<div class="soft line" style="padding-top:12px;border-top:1px solid #e6eaef;font-size:12px;line-height:18px;\
color:#5c6773;{broken}">nsqdigest &middot; digest {id}{unsubscribe}</div>
""")
_UNSUBSCRIBE = _fragment(' &middot; <a class="soft" href="{url}" style="color:#5c6773">Unsubscribe</a>')


def html_of(content: Content) -> str:
    rows = [_row(_TITLE(
        route=content.route, timeline=content.timeline, headline=content.headline, span=content.span
    ), "24px 24px 14px")]  # fmt: skip
    if content.groups:
        largest = max(group.records for group in content.groups)
        rows.append(_row(_table(_group(group, largest) for group in content.groups), "0 24px 14px"))
    if content.events:
        rows.append(_row(Markup("").join(_events(content.events)), "0 24px 10px"))
    unsubscribe = _UNSUBSCRIBE(url=content.unsubscribe) if content.unsubscribe else ""
    rows += [
        _row(_NOTES(lines=Markup("<br>").join(_last_lines(content))), "4px 24px 14px"),
        _row(_FOOT(id=content.id, unsubscribe=unsubscribe), "0 24px 20px"),
    ]
    body = _BODY(preheader=content.preheader, filler=_FILLER, rows=Markup("").join(rows))
    return str(_HEAD(title=content.subject) + body)


def _row(inner: Markup, padding: str) -> Markup:
    return _ROW(inner=inner, padding=padding)


def _table(rows: Iterable[Markup]) -> Markup:
    return _TABLE(rows=Markup("").join(rows))


def _group(group: GroupCount, largest: int) -> Markup:
    share = max(1, round(100 * group.records / largest))
    rest = _REST if share < 100 else ""
    return _GROUP(name=group.name, records=f"{group.records:,}", share=share, rest=rest)


def _events(events: Iterable[Event]) -> Iterable[Markup]:
    """Lines of a table, but for those with fields, which have one of their own: its columns are others."""
    for has_fields, some in groupby(events, key=lambda event: bool(event.fields)):
        if not has_fields:
            yield _table(map(_event, some))
            continue
        for event in some:
            yield _table([_event(event)])
            yield _table(_FIELD(name=name, value=value) for name, value in event.fields)


def _event(event: Event) -> Markup:
    group = _KIND(group=event.group) if event.group else ""
    width = 64 if len(event.at) == len("00:00:00") else 150
    return _EVENT(at=event.at, line=event.line, group=group, width=width)


def _last_lines(content: Content) -> list[str]:
    return [*content.notes, f"The next digest comes not before {content.next_earliest}."]
