"""Where digests go: one file for each kind of sink.

- table: all kinds; a new one is a file and a line there · kind: what a kind consists of
- base: what the rest of this room knows of a sink · webhook, email, nsq, log: the kinds
- rendering, template_files: bodies, and templates of the operator's own
"""
