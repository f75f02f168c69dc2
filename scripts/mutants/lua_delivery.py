"""Mutants of what takes a timeline from claim to close, or back."""

from __future__ import annotations

from scripts.mutants.lua_mutant import SERVERS, lib, of

CLAIM = of(
    "claim",
    (
        "it looks at 500 rows for whatever room",
        "a claim costs what it brings",
        "math.min(LOOKED_AT_PER_ROUTE, 2 * room[budget] + 16)",
        "LOOKED_AT_PER_ROUTE",
    ),
    ("what is due now is left", "due is due", "      if due > now then\n", "      if due >= now then\n"),
    (
        "the exact instant is not worked out",
        "records since postpone what is due",
        "      if due > now then\n",
        "      if false then\n",
    ),
    (
        "it forgets when they were due",
        "a lease that ran out brings a timeline back, due as before",
        "struct.pack(SCHEDULE, due, due, records)",
        "struct.pack(SCHEDULE, now, now, records)",
    ),
    (
        "records that come later postpone what is leased",
        "what is leased keeps the instant at which it was due",
        "      redis.call('HSET', schedules, unpack(kept))\n",
        "",
    ),
    (
        "one too many",
        "a budget bounds what is taken",
        "elseif #taken < room[budget] then",
        "elseif #taken <= room[budget] then",
    ),
    (
        "routes do not share a budget",
        "a sink's room is for all its routes",
        "      room[budget] = room[budget] - #taken\n",
        "",
    ),
    (
        "postponed ones keep their score",
        "what is not due is scored anew",
        "    if #later > 0 then\n",
        "    if false then\n",
    ),
    (
        "sentry: the lease counts from when it was due",
        "a lease lasts from the claim on",
        "= now + lease_ms, timeline",
        "= due + lease_ms, timeline",
    ),
    (
        "nobody owns what was taken",
        "what is leased has a token",
        "      redis.call('HSET', tokens, unpack(owners))\n",
        "",
    ),
    (
        "the next is the last",
        "it tells when the next is due",
        "tonumber(first[2]) < next_due",
        "tonumber(first[2]) > next_due",
    ),
    (
        "its first write is one that a full Redis refuses",
        "deliveries go on when Redis is full",
        "    begin_writes(agenda)\n    if #taken",
        "    if #taken",
    ),
    (
        "the agenda is never put off",
        "idle daemons look only at what may be due",
        "  if first[2] ~= (redis.call('ZSCORE', agenda, waiting) or nil) then\n",
        "  if false then\n",
    ),
    (
        "the agenda keeps what waits no more",
        "idle daemons look only at what may be due",
        "    redis.call('ZREM', agenda, waiting)\n",
        "",
    ),
    tests=("tests/lua/test_claim.py", SERVERS),
)

OPEN = of(
    "open",
    (
        "sentry: without a token",
        "a token fences every transition",
        "if redis.call('HGET', tokens, timeline) ~= token then",
        "if false then",
    ),
    (
        "sentry: the values stay with the open set",
        "open set and snapshot share no key",
        "    move(values, snapshot_values)\n",
        "    redis.call('COPY', values, snapshot_values, 'REPLACE')\n",
    ),
    (
        "sentry: what came since goes under the old id",
        "one id is one set of records for ever",
        "'id', ARGV[5], 'opened'",
        "'id', unfinished and redis.call('HGET', head, 'id') or ARGV[5], 'opened'",
    ),
    (
        "a digest left over is begun anew",
        "a snapshot is frozen",
        "local unfinished = id and redis.call('EXISTS', snapshot) == 1",
        "local unfinished = id and newer == 0 and redis.call('EXISTS', snapshot) == 1",
    ),
    ("a forgotten timeline is still counted", "forgetting makes room", "  redis.call('DECR', timeline_count)\n", ""),
    (
        "a forgotten timeline keeps its iteration",
        "a timeline begins with iteration 1",
        "redis.call('UNLINK', head, values)",
        "redis.call('UNLINK', values)",
    ),
    (
        "the lease is not longer",
        "a delivery begins with a whole lease",
        "redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)",
        "redis.call('ZADD', leased, now, timeline)",
    ),
    (
        "the iteration stands still",
        "iteration counts digests",
        "iteration = iteration + 1",
        "iteration = iteration + 0",
    ),
    (
        "the schedule goes on counting what is gone",
        "the schedule counts the open set",
        "struct.pack(SCHEDULE, base, bound, 0)",
        "struct.pack(SCHEDULE, base, bound, newer)",
    ),
    (
        "losses are told again",
        "what was lost since the digest before is told once",
        "  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)\n  redis.call('HSET', schedules",
        "  redis.call('HSET', schedules",
    ),
    (
        "losses are not told",
        "a digest says what was lost since the one before",
        "'superseded', superseded + (lost[1] or 0),",
        "'superseded', superseded,",
    ),
    (
        "what was superseded by a merge is in the snapshots, too",
        "the ledger balances",
        "'snapshots', more,",
        "'snapshots', newer,",
    ),
    (
        "the next digest is promised by another iteration",
        "delays grow with the iteration",
        "'next', ARGV[math.min(6 + iteration, #ARGV)], 'superseded', superseded + (lost",
        "'next', ARGV[math.min(7 + iteration, #ARGV)], 'superseded', superseded + (lost",
    ),
    (
        "a merged digest is as young as its id",
        "a digest is too old by its first records",
        "'attempts', 0)\n",
        "'attempts', 0, 'since', now)\n",
    ),
    (
        "a merged digest was never tried",
        "there is a last attempt for merged digests, too",
        "'attempts', 0)\n",
        "'attempts', 0, 'tries', 0)\n",
    ),
    (
        "a merged digest is as large as it gets",
        "capacity is exact in a merged digest",
        "trimmed = merge_capacity > 0 and trim(snapshot, snapshot_values, merge_capacity) or 0",
        "trimmed = 0",
    ),
    (
        "merged though its policy keeps it frozen",
        "a retried digest goes out as it was",
        "local may_merge = merge_capacity > 0 and",
        "local may_merge = merge_capacity >= 0 and",
    ),
    (
        "it takes in whatever there is",
        "a merge is bounded work",
        " and newer <= MOST_MERGED\n",
        "\n",
    ),
    (
        "it drops whatever there is too much",
        "a merge is bounded work",
        "\n  and redis.call('ZCARD', snapshot) <= merge_capacity + MOST_MERGED",
        "",
    ),
    tests=("tests/lua/test_open.py", "tests/lua/test_merge.py"),
)

ENDS = (
    *of(
        "close",
        (
            "sentry: without a token",
            "a token fences every transition",
            "redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id",
            "told[1] ~= id",
        ),
        (
            "any id",
            "a digest is closed under its id",
            " ~= token or told[1] ~= id then",
            " ~= token or not told[1] then",
        ),
        ("a second close is stale", "closed already is an answer", "if told[2] == id then", "if false then"),
        ("the snapshot stays", "what was delivered goes", "redis.call('UNLINK', snapshot, snapshot_values)\n", ""),
        ("what was delivered is not counted", "the ledger balances", "{ 'delivered', total, ", "{ 'delivered', 0, "),
        (
            "what came meanwhile does not postpone",
            "the schedule counts the open set",
            "  redis.call('ZCARD', index))",
            "  0)",
        ),
    ),
    *of(
        "bury",
        (
            "without a token",
            "a token fences every transition",
            "redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id",
            "told[1] ~= id",
        ),
        (
            "any id",
            "a digest is buried under its id",
            " ~= token or told[1] ~= id then",
            " ~= token or not told[1] then",
        ),
        ("a second one is stale", "buried already is an answer", "if told[2] == id then", "if false then"),
        ("its values are lost", "a dead digest is whole", "move(snapshot_values, dead_values)\n", ""),
        ("without its reason", "a dead digest has its reason", "redis.call('HSET', dead_details, id, ARGV[10])\n", ""),
        (
            "what is dead is not remembered",
            "an event of a dead digest is not shown beside its revival",
            "remember(memory, snapshot, tonumber(ARGV[8]), tonumber(ARGV[9]))\n",
            "",
        ),
        (
            "counted as delivered",
            "the ledger says what became of a record",
            "end_count(ledger, 'buried', { 'buried', total,",
            "end_count(ledger, 'buried', { 'delivered', total,",
        ),
    ),
    *of(
        "fail",
        (
            "without a token",
            "a token fences every transition",
            "if redis.call('HGET', tokens, timeline) ~= ARGV[2] then",
            "if false then",
        ),
        ("attempts stand still", "every post that ended counts", "head, 'attempts', posts)", "head, 'attempts', 0)"),
        ("tries stand still", "there is a last try", "head, 'tries', posts)", "head, 'tries', 0)"),
        (
            "an attempt is counted of what has none",
            "before an open there is nothing to count",
            " and redis.call('HEXISTS', head, 'id') == 1 then",
            " then",
        ),
    ),
    *of(
        "renew",
        (
            "without a token",
            "a token fences every transition",
            "if redis.call('HGET', tokens, timeline) ~= ARGV[3] then",
            "if false then",
        ),
        ("the lease is not longer", "a renewed lease lasts from now", "now + tonumber(ARGV[4])", "now"),
        (
            "its first write is one that a full Redis refuses",
            "deliveries go on when Redis is full",
            "begin_writes(agenda)\n",
            "",
        ),
        tests=("tests/lua/test_renew.py", SERVERS),
    ),
)

RETURNS = (
    *of(
        "release",
        ("of other claims, too", "a claim releases its own", "if owners[position + 1] == token then", "if true then"),
        ("due at once", "due as before", "timeline, base, bound, 0, records)", "timeline, 0, bound, 0, records)"),
    ),
    *of(
        "maintenance",
        (
            "leases that last, too",
            "a lease lasts",
            "redis.call('ZRANGEBYSCORE', leased, '-inf', now,",
            "redis.call('ZRANGEBYSCORE', leased, '-inf', '+inf',",
        ),
        (
            "one moment early",
            "a lease lasts",
            "redis.call('ZRANGEBYSCORE', leased, '-inf', now,",
            "redis.call('ZRANGEBYSCORE', leased, '-inf', now + 1,",
        ),
        (
            "due now",
            "never later than it was due",
            "packed[number] and struct.unpack(SCHEDULE, packed[number]) or now",
            "now",
        ),
        ("the token stays", "whoever lost the lease is stale", "    redis.call('HDEL', tokens, unpack(names))\n", ""),
        (
            "any number in one call",
            "work is bounded",
            "'-inf', now, 'LIMIT', 0, limit)",
            "'-inf', now, 'LIMIT', 0, 500)",
        ),
        ("a lost schedule stops it", "lost data stops nobody", " or now\n", " or error('no schedule')\n"),
    ),
)

MEMORY = lib(
    "memory",
    ("the memory takes the older", "the newest that was delivered counts", "memory, 'LT', unpack", "memory, unpack"),
    (
        "the memory stays for ever",
        "the last trace of a timeline goes",
        "  redis.call('PEXPIRE', memory, remember_ms)\n",
        "",
    ),
    (
        "the memory keeps the oldest",
        "the newest entries are remembered",
        "redis.call('ZREMRANGEBYRANK', memory, remembered, -1)",
        "redis.call('ZREMRANGEBYRANK', memory, 0, -remembered - 1)",
    ),
    (
        "large digests are remembered whole",
        "closing is bounded work",
        ", remembered, MOST_OF_A_DIGEST)",
        ", remembered)",
    ),
    ("only a page is remembered", "the newest of a digest are remembered", "- 1, ENTRIES_PER_CALL do", "- 1, 1e6 do"),
    tests=("close",),
)

MUTANTS = (*CLAIM, *OPEN, *ENDS, *MEMORY, *RETURNS)
