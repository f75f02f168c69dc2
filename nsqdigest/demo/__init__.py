"""The whole of it on one machine: `nsqdigest demo`.

Everything but the surroundings is the real thing: the daemon, its file, its transport, its scripts, its webhook. The
nsqd is the embedded one, Redis is started for the occasion, and the receiver is this process.

- shop: what is published (pure) · account: what became of it, event by event (pure)
- narrator: what is shown · receiver: where digests and dead letters arrive · play: the order of things
- demo.toml: the daemon's file, with the addresses put over it at start
"""
