"""The daemon over HTTP: health, metrics, operators' commands."""
