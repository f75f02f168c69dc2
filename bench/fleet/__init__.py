"""What a fleet of daemons does to a store that was in trouble: simulated, with the real controller."""
