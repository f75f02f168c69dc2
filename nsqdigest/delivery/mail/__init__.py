"""Digests as mails: what the sink of kind "email" sends, and how (everything pure but for session and connections).

A mail is made of the digest's JSON, like every body. So it is a function of the snapshot, its head and the
configuration: the same bytes at each attempt.

- addresses: what an address is · addressing: recipients and subject, fixed or of the newest record
- content: what the mail says of a digest · text, html (of fragments): the same in both forms
- mime: headers and parts as bytes · compose: all of that, from a digest's JSON
- reading: the bytes read back for people
- answers: what an answer of a mail server means · session: one connection to it · connections: those of a sink
"""
