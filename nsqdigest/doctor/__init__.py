"""`nsqdigest doctor`: tests every service that the file names, and changes nothing.

- examination: runs all looks at once, each with its own time limit
- nsq, store, places: one look for each kind of service · reach: connecting and resolving, which they share
- judgements, running: turn facts into findings (pure) · findings, report: the parts of the report and its text (pure)

A look brings facts; the judgements alone decide whether a fact is well, and name the remedy. The look of a sink is in
the file of its kind, in `delivery/sinks`.
"""
