"""nsqdigest: events from NSQ, gathered in Redis, delivered as digests."""

__version__ = "0.1.0"
