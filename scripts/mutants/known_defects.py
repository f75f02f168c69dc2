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
        "leases[2 * count - 1], leases[2 * count] = lease_until, timeline",
        "leases[2 * count - 1], leases[2 * count] = due + tonumber(ARGV[2]), timeline",
        "tests/lua/test_claim.py",
    ),
    _of(
        "delivery/open",
        "sentry: without a token",
        "a token fences every transition",
        "if owner ~= entry.token then",
        "if false then",
        "tests/lua/test_open.py",
    ),
    _of(
        "delivery/open",
        "sentry: the values stay with the open set",
        "open set and snapshot share no key",
        "      rename(KEYS[own + 1], KEYS[own + 3])\n",
        "      call('COPY', KEYS[own + 1], KEYS[own + 3], 'REPLACE')\n",
        "tests/lua/test_open.py",
    ),
    _of(
        "delivery/open",
        "sentry: what came since goes under the old id",
        "one id is one set of records for ever",
        "local head = with_field(entry.head, 'id', entry.new_id)",
        "local head = entry.head",
        "tests/lua/test_open.py",
        "tests/lua/test_merge.py",
    ),
    _of(
        "delivery/finish",
        "sentry: without a token",
        "a token fences every transition",
        "if owner ~= entry.run.token or (is_other and",
        "if (is_other and",
        "tests/lua/test_close.py",
    ),
    _of(
        "intake/add",
        "prototype: what a full timeline refuses moves its schedule, at each replay again",
        "the schedule is a function of the set",
        "      fate, is_loser = into_full_set(index, values, key, score, value)\n",
        "      fate, is_loser = into_full_set(index, values, key, score, value)\n"
        "      instants = pack('>I8I8', unpack_from('>I8', instants) + increment, (unpack_from('>I8', instants, 9)))\n"
        "      call('HSET', schedules, names[number], pack('>c16I4', instants, held))\n",
    ),
    _of(
        "intake/add",
        "sentry: a record's value is under one key for open set and digest",
        "a snapshot is frozen",
        "      held, kept = held + 1, kept + 1\n",
        "      held, kept = held + 1, kept + 1\n"
        "      local shared = string.gsub(values, ':values:', ':digest-values:', 1)\n"
        "      if call('HEXISTS', shared, key) == 1 then\n"
        "        call('HSET', shared, key, value)\n"
        "      end\n",
    ),
    _of(
        "delivery/finish",
        "prototype: the base of before stays when a digest has failed",
        "a retry sets base and bound",
        "  call('HSET', schedules, unpack(schedules_set))\n",
        "",
    ),
)
