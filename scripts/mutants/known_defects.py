"""Mutants by hand: the defects that the store's ancestors had, as they would look in these scripts.

Sentry kept one key for the values of the open set and of the digest, closed without a token, counted a lease from the
instant at which a timeline was due, and put newer records under the id of a digest left over. A prototype of this store
moved a schedule again with what a full timeline refused, and kept the base of a digest that had failed. No generated
mutant comes near these. Some of them the model alone is to find.
"""

from __future__ import annotations

from scripts.mutants.lua_scripts import MODEL
from scripts.mutants.mutant import Mutant


def _of(file: str, name: str, rule: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name=f"{file}: {name}", file=f"lua/{file}.lua", old=old, new=new, rule=rule, tests=(*tests, MODEL))


MUTANTS: tuple[Mutant, ...] = (
    _of(
        "delivery/claim",
        "sentry: the lease counts from when it was due",
        "a lease lasts from the claim on",
        "= now + lease_ms, timeline",
        "= due + lease_ms, timeline",
        "tests/lua/test_claim.py",
    ),
    _of(
        "delivery/open",
        "sentry: without a token",
        "a token fences every transition",
        "if redis.call('HGET', tokens, timeline) ~= token then",
        "if false then",
        "tests/lua/test_open.py",
    ),
    _of(
        "delivery/open",
        "sentry: the values stay with the open set",
        "open set and snapshot share no key",
        "    move(values, snapshot_values)\n",
        "    redis.call('COPY', values, snapshot_values, 'REPLACE')\n",
        "tests/lua/test_open.py",
    ),
    _of(
        "delivery/open",
        "sentry: what came since goes under the old id",
        "one id is one set of records for ever",
        "'id', ARGV[5], 'merging'",
        "'id', id, 'merging'",
        "tests/lua/test_open.py",
        "tests/lua/test_merge.py",
    ),
    _of(
        "delivery/close",
        "sentry: without a token",
        "a token fences every transition",
        "redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id",
        "told[1] ~= id",
        "tests/lua/test_close.py",
    ),
    _of(
        "intake/add",
        "prototype: what a full timeline refuses moves its schedule, at each replay again",
        "the schedule is a function of the set",
        "      fate, is_loser = into_full_set(index, values, key, score, value)\n",
        "      fate, is_loser = into_full_set(index, values, key, score, value)\n"
        "      base = base + increment\n"
        "      call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, held))\n",
    ),
    _of(
        "intake/add",
        "sentry: a record's value is under one key for open set and digest",
        "a snapshot is frozen",
        "      fate, held = KEPT, held + 1\n",
        "      fate, held = KEPT, held + 1\n"
        "      local shared = string.gsub(values, ':values:', ':digest-values:', 1)\n"
        "      if call('HEXISTS', shared, key) == 1 then\n"
        "        call('HSET', shared, key, value)\n"
        "      end\n",
    ),
    _of(
        "delivery/fail",
        "prototype: the base of before stays when a digest has failed",
        "a retry sets base and bound",
        "wait_again(waiting, schedules, agenda, timeline, instant, instant, 0, redis.call('ZCARD', index))\n",
        "redis.call('ZADD', waiting, instant, timeline)\nput_down(agenda, waiting, instant)\n",
    ),
)
