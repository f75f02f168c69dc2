"""Modules of `bench` and `scripts`, which are no part of the package that is tested.

With the root on sys.path nsqdigest would come from the tree and not from the environment: so only these two are made
known, each by its own folder.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


FOLDERS = ("bench", "scripts")


def load(name: str) -> ModuleType:
    """The module, by its full name: `bench.throughput.report`, `scripts.backoff_page`."""
    for folder in FOLDERS:
        if folder not in sys.modules:
            spec = importlib.machinery.ModuleSpec(folder, None, is_package=True)
            spec.submodule_search_locations = [str(ROOT / folder)]
            sys.modules[folder] = importlib.util.module_from_spec(spec)
    return importlib.import_module(name)
