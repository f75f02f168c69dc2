"""The operator's file as one frozen tree, validated once; all its problems are reported at once, with file and line.

`find` chooses the file, `load` reads it, `parse_text` reads text that is there already. For a mistake of an operator
they raise `ConfigError` and nothing else. Nothing is read or made at import.

- model: the tree · options: every option, declared in one line · rules: over several options
- reading: text to tree · overrides: values from the environment · readers, texts, units: single values
- problems, toml_lines: the place of a mistake and its message
- example: config/nsqdigest.toml

The kinds of sink declare their options in `delivery/sinks`, with the tools of this room, and come in as an argument.
"""

from nsqdigest.base.errors import ConfigError
from nsqdigest.config.model import (
    Address,
    Admin,
    Backoff,
    ConditionTable,
    Config,
    Limits,
    LogSettings,
    Nsq,
    Policy,
    Redis,
    Route,
    Scheduler,
    Secret,
    SinkSettings,
    Tls,
    UnixSocket,
)
from nsqdigest.config.reading import find, load, parse_text

__all__ = [
    "Address",
    "Admin",
    "Backoff",
    "ConditionTable",
    "Config",
    "ConfigError",
    "Limits",
    "LogSettings",
    "Nsq",
    "Policy",
    "Redis",
    "Route",
    "Scheduler",
    "Secret",
    "SinkSettings",
    "Tls",
    "UnixSocket",
    "find",
    "load",
    "parse_text",
]
