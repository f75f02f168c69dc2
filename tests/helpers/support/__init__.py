"""Helpers of the tests: `from support.servers import Nsqd`. Nothing here holds assertions about nsqdigest."""
