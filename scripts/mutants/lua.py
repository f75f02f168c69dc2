"""Mutants of the store's scripts: what each of them promises, broken one promise at a time.

Four are old acquaintances. A prototype of this store had two of them (a schedule that moved again with what a full
timeline refused; a base that stayed when a failed digest was to wait), and the model alone is to find those. The
others are Sentry's: one key for the values of the open set and of the digest, and closing without a token.
"""

from __future__ import annotations

from scripts.mutants import lua_delivery, lua_intake, lua_operators
from scripts.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*lua_intake.MUTANTS, *lua_delivery.MUTANTS, *lua_operators.MUTANTS)
