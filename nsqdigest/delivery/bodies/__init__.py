"""Other bodies than the digest's own JSON: what a sink posts instead (pure).

A body is made of the digest's JSON, which delivery renders for every sink alike (`digest`, `grouped`). So it is a
function of the snapshot, its head and the configuration: the same bytes at each attempt.

- base: what a body is, and how one fails · document: the JSON read back, values unparsed
- message: what a message to people says · slack, teams: the same in their forms
- template: the operator's own, by Jinja2 · sandbox, filters: what a template may do · work: how much · encoding: how
  its values become text · checking: a template before it is used · sample: digests to try a body with
- values: an event's JSON, numbers as written · texts: one line of anything
"""
