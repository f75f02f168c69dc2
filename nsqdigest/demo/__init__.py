"""The whole product on one machine: `nsqdigest demo`.

The daemon, its file, its connections, scripts and webhook are the real ones. The nsqd is the embedded one (`servers`),
Redis is started for the occasion, and the receiver is this process.

- play: start, run and end, in order · stage: which event or outage comes when · troupe: the daemon, its kill and the
  next one · daemons: one of them, a process · settings: demo.toml with the addresses of this run
- shop: the events (pure) · receiver: where digests and dead letters arrive · account: whether each event arrived (pure)
- narrator: what is said · display: on which screen · header, lines, picture: how it looks (pure)
- demo.toml: the daemon's file; its addresses are replaced at start
"""
