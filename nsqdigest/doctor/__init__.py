"""`nsqdigest doctor`: is everything that the file names as it has to be?

- findings: what was found, in words (pure) · judgements, running: what a fact means (pure)
- report: how it is shown (pure)
- nsq, store, places: they look, each at its own, and change nothing · reach: what they share
- examination: all of them at once, each with its own time

An examiner brings facts; whether a fact is well, and the remedy where it is not, is decided by the judgements alone.
"""
