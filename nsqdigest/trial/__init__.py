"""What the daemon would do with an event: `nsqdigest try`. It reads the configuration alone and connects to nothing."""
