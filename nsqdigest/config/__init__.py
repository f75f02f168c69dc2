"""The operator's file as one frozen tree, validated once; every problem of it in one answer, each with file and line.

`find` says which file, `load` reads it, `parse_text` does the same with text that is already there. All raise
`ConfigError`, and nothing else, for what an operator can do wrong. Nothing is read or made at import.

- model: the tree · options: every option, declared in one line · rules: what must hold between options
- reading: text to tree · overrides: the environment's values · readers, texts, units: single values
- problems, toml_lines: where a mistake stands and how it is said
- example: config/nsqdigest.toml
"""

from nsqdigest.base.errors import ConfigError
from nsqdigest.config.model import (
    Address,
    Admin,
    Backoff,
    Config,
    Limits,
    LogSettings,
    MatchValue,
    Nsq,
    Policy,
    Redis,
    Route,
    Scheduler,
    Secret,
    Sink,
    Tls,
)
from nsqdigest.config.reading import find, load, parse_text

__all__ = [
    "Address",
    "Admin",
    "Backoff",
    "Config",
    "ConfigError",
    "Limits",
    "LogSettings",
    "MatchValue",
    "Nsq",
    "Policy",
    "Redis",
    "Route",
    "Scheduler",
    "Secret",
    "Sink",
    "Tls",
    "find",
    "load",
    "parse_text",
]
