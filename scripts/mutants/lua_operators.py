"""Mutants of what an operator asks for, and of a daemon's first words."""

from __future__ import annotations

from scripts.mutants.lua_mutant import MODEL, of

MUTANTS = (
    *of(
        "drop_dead",
        (
            "of what is not dead, too",
            "an unknown one is told",
            "if not redis.call('ZSCORE', dead, id) then",
            "if false then",
        ),
        (
            "its values stay",
            "what is dropped goes",
            "redis.call('UNLINK', dead_index, dead_values)",
            "redis.call('UNLINK', dead_index)",
        ),
        ("not counted as deleted", "the ledger balances", "{ 'deleted', total, ", "{ 'deleted', 0, "),
        ("its reason stays", "what is dropped goes", "redis.call('HDEL', dead_details, id)\n", ""),
    ),
    *of(
        "delete",
        ("its worker goes on", "whoever had it leased is stale", "end_lease(leased, tokens, timeline)\n", ""),
        (
            "its memory stays",
            "no key of it is left",
            "redis.call('UNLINK', head, index, values, snapshot, snapshot_values, memory)",
            "redis.call('UNLINK', head, index, values, snapshot, snapshot_values)",
        ),
        ("it is still counted", "deleting makes room", "redis.call('DECR', timeline_count)\n", ""),
        (
            "its digest is not counted",
            "the ledger balances",
            "{ 'deleted', open + in_snapshot,",
            "{ 'deleted', open,",
        ),
        (
            "its losses stay",
            "no trace of it is left",
            "redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)\n",
            "",
        ),
    ),
    *of(
        "flush",
        (
            "what is leased, too",
            "what is being delivered is left alone",
            "if not redis.call('ZSCORE', waiting, timeline) then",
            "if false then",
        ),
        (
            "later records postpone it",
            "flush is exempt from all delays",
            "math.min(base, now), now, records)",
            "math.min(base, now), bound, records)",
        ),
        (
            "later than it was due",
            "never later than it was due",
            "redis.call('ZADD', waiting, math.min(base, now), timeline)",
            "redis.call('ZADD', waiting, bound, timeline)",
        ),
    ),
    *of(
        "revive",
        (
            "twice",
            "a digest is revived once",
            "if known and under_way then",
            "if false then",
        ),
        ("it stays dead, too", "a digest is in one place", "redis.call('ZREM', dead, id)\nend_lease", "end_lease"),
        ("its reason stays", "a digest is in one place", "redis.call('HDEL', dead_details, id)\nredis", "redis"),
        ("its attempts begin anew", "attempts of one id are counted on", "'attempts', ARGV[4]", "'attempts', 0"),
        ("it is not counted", "the ledger balances", "{ 'snapshots', moved, ", "{ 'snapshots', 0, "),
        ("its timeline is not counted", "timelines are counted", "redis.call('INCR', timeline_count)\n", ""),
    ),
    *of(
        "adopt",
        ("its worker goes on", "whoever had it leased is stale", "end_lease(leased, tokens, timeline)\n", ""),
        (
            "only its open set",
            "all its records go over",
            "local met_of_digest, copied_of_digest = unite(snapshot, snapshot_values, to_index, to_values)",
            "local met_of_digest, copied_of_digest = 0, 0",
        ),
        (
            "more than the new route's capacity",
            "capacity is exact",
            "local over_capacity = trim(to_index, to_values, capacity)",
            "local over_capacity = 0",
        ),
        (
            "two timelines become one and count as two",
            "timelines are counted",
            "  redis.call('DECR', timeline_count)\n",
            "",
        ),
        (
            "its losses are forgotten",
            "a digest says what was lost since the one before",
            "superseded + (told[2] or 0) + (lost[1] or 0)",
            "superseded",
        ),
        ("its iteration begins anew", "delays go on growing", "(told[1] or 0) - (in_snapshot > 0 and 1 or 0)", "0"),
        (
            "its memory is forgotten",
            "a redelivered event is not shown twice",
            "if redis.call('EXISTS', memory) == 1 then",
            "if false then",
        ),
        (
            "it is added out of nothing",
            "both ledgers balance",
            "{ 'dropped:adopted', open + in_snapshot, ",
            "{ 'dropped:adopted', 0, ",
        ),
        (
            "the schedule there does not count it",
            "the schedule counts the open set",
            "struct.pack(SCHEDULE, base, bound, records))",
            "struct.pack(SCHEDULE, base, bound, held))",
        ),
    ),
    *of(
        "audit",
        (
            "no timelines are there",
            "audit tells how many timelines are there",
            "redis.call('HLEN', schedules)",
            "0",
        ),
        (
            "the first route only",
            "audit tells all ledgers of a partition",
            "for number = 2, #KEYS, 4 do",
            "for number = 2, 2, 4 do",
        ),
        tests=(MODEL,),
    ),
    *of(
        "rights",
        ("the first command only", "each right is asked about", "for number = 2, #ARGV do", "for number = 2, 2 do"),
        ("of any key", "rights are those to the keys of the namespace", "word == '@' and ARGV[1] or word", "word"),
        ("all is allowed", "what is refused is told", "answer[#answer + 1] = ARGV[number]", "answer[#answer] = 1"),
    ),
    *of(
        "recount",
        (
            "what is leased is nowhere",
            "a timeline is in one of waiting and leased",
            " + (redis.call('ZSCORE', leased, timeline) and 1 or 0))",
            ")",
        ),
        (
            "what its schedule says is one more",
            "a schedule is counted against its set",
            "    counted = records\n",
            "    counted = records + 1\n",
        ),
        (
            "values of the open set for those of the snapshot",
            "values are counted where they are",
            "say(redis.call('HLEN', snapshot_values))",
            "say(redis.call('HLEN', values))",
        ),
        tests=(MODEL,),
    ),
    *of(
        "hello",
        (
            "the epoch is always new",
            "an epoch stays while the data does",
            "if redis.call('EXISTS', layout) == 0 then",
            "if true then",
        ),
        (
            "routes of another layout are taken up",
            "another layout is only told",
            "if stored[1] == ARGV[2] and stored[2] == ARGV[3] then",
            "if true then",
        ),
        (
            "its first write is one that a full Redis refuses",
            "a daemon starts on a full Redis",
            "redis.call('HDEL', layout, '')",
            "redis.call('HEXISTS', layout, '')",
        ),
    ),
)
