"""Mutants of add and of what the scripts share."""

from __future__ import annotations

from scripts.mutants.lua_mutant import MODEL, SERVERS, lib, of

ADD = of(
    "add",
    (
        "timelines are not counted",
        "limits.timelines bounds them",
        "  call('INCRBY', timeline_count, #beginnings / 2)\n",
        "",
    ),
    ("a batch may begin any number", "the limit is exact within a batch", "      places = places - 1\n", ""),
    ("one timeline too many", "the limit is exact", "left == 0 and places <= 0", "left == 0 and places < 0"),
    (
        "repeats are not looked up",
        "a redelivered event is not shown twice",
        "possible_repeat == 1 and is_duplicate(",
        "possible_repeat == 2 and is_duplicate(",
    ),
    (
        "every record is looked up",
        "only what may be a repeat can be a duplicate",
        "possible_repeat == 1 and is_duplicate(",
        "second_kind and is_duplicate(",
    ),
    ("one record too many", "capacity is exact", "elseif held >= capacity and", "elseif held > capacity and"),
    (
        "a known key in a full set is a newcomer",
        "a record of a full set is renewed in its place",
        "held >= capacity and not call('ZSCORE', index, key)",
        "held >= capacity",
    ),
    (
        "what capacity drops is not told",
        "a digest says how many were dropped since the one before",
        "{ [SUPERSEDED] = 's', [OVER_CAPACITY] = 'c' }",
        "{ [SUPERSEDED] = 's' }",
    ),
    (
        "exact copies count as superseded",
        "a copy of what is there changes nothing",
        "    if lost and not",
        "    lost = fate ~= KEPT and (lost or 's')\n    if lost and not",
    ),
    (
        "what lost is told again with each replay",
        "a digest tells of an event once that it lost",
        "not (is_loser and possible_repeat == 1)",
        "true",
    ),
    (
        "nothing of a possible repeat is told",
        "what a possible repeat replaces is told",
        "not (is_loser and possible_repeat == 1)",
        "possible_repeat == 0",
    ),
    (
        "a newcomer overwrites what it should contend with",
        "of two with one key the newer stays",
        "call('ZADD', index, 'NX', score, key) == 1",
        "call('ZADD', index, score, key) == 1",
    ),
    (
        "a later batch brings its own base and bound",
        "base and bound are set when a timeline begins",
        "    base, bound, held_before = unpack_from(SCHEDULE, known[number])\n",
        "    held_before = select(3, unpack_from(SCHEDULE, known[number]))\n",
    ),
    (
        "what is due now is not told",
        "a timeline that begins due is told, so that nobody waits for the timer",
        "      if due <= now then\n",
        "      if due < now then\n",
    ),
    (
        "what begins for later is told",
        "only what is due now wakes the scheduler",
        "local due = due_ms(base, bound, increment, held)",
        "local due = due_ms(base, bound, increment, 0)",
    ),
    ("open records are not in the ledger", "the ledger balances", "'open', opened, ", ""),
    (
        "the counter is not told when nothing was added",
        "what the ledger has is told, also to a batch of repeats",
        "local counted = end_count(",
        "local counted = added ~= 0 and end_count(",
    ),
    (
        "its first write is one that a full Redis lets pass",
        "a full Redis refuses an add whole",
        "local known = call('HMGET', schedules, unpack(names))\n",
        "call('HDEL', losses, '')\nlocal known = call('HMGET', schedules, unpack(names))\n",
    ),
    (
        "what a broken call left behind stays uncounted",
        "replaying a batch that broke off mends it",
        "  left_over = left_over + left\n",
        "",
    ),
    tests=("tests/lua/test_add.py", SERVERS),
)

ACQUAINTANCES = (
    *of(
        "add",
        (
            "prototype: what a full timeline refuses moves its schedule, at each replay again",
            "the schedule is a function of the set",
            "      fate, is_loser = into_full_set(index, values, key, score, value)\n",
            "      fate, is_loser = into_full_set(index, values, key, score, value)\n"
            "      base = base + increment\n"
            "      call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, held))\n",
        ),
        (
            "sentry: a record's value is under one key for open set and digest",
            "a snapshot is frozen",
            "      fate, held = KEPT, held + 1\n",
            "      fate, held = KEPT, held + 1\n"
            "      local shared = string.gsub(values, ':values:', ':digest-values:', 1)\n"
            "      if call('HEXISTS', shared, key) == 1 then\n"
            "        call('HSET', shared, key, value)\n"
            "      end\n",
        ),
        tests=(MODEL,),
    ),
    *of(
        "fail",
        (
            "prototype: the base of before stays when a digest has failed",
            "a retry sets base and bound",
            "wait_again(waiting, schedules, agenda, timeline, instant, instant, 0, redis.call('ZCARD', index))\n",
            "redis.call('ZADD', waiting, instant, timeline)\nput_down(agenda, waiting, instant)\n",
        ),
        tests=(MODEL,),
    ),
)

LIBRARY = (
    *lib(
        "records",
        (
            "the older wins",
            "of two with one key the newer stays",
            "local wins = own_score < present_score",
            "local wins = own_score > present_score",
        ),
        (
            "copies are not known",
            "a copy of what is there changes nothing",
            "    if present == value then\n",
            "    if false then\n",
        ),
        (
            "of equally new ones the first stays",
            "of equal timestamps the larger value wins",
            "wins = not present or larger_bytes(value, present)",
            "wins = not present",
        ),
        (
            "of equally old ones the last stays",
            "of equal timestamps the smaller key counts as the newer",
            "own_score < oldest_score or (own_score == oldest_score and larger_bytes(oldest[1], key))",
            "own_score <= oldest_score",
        ),
        (
            "a full set takes older newcomers",
            "the newest stay",
            "  if fits then\n",
            "  if true then\n",
        ),
        (
            "the value of what made room stays",
            "memory is bounded by capacity",
            "    redis.call('HDEL', values, oldest[1])\n",
            "",
        ),
        (
            "a copy of what a digest shows is new",
            "a redelivered event is not shown twice",
            "  if shown and tonumber(score) >= tonumber(shown) then",
            "  if shown and tonumber(score) > tonumber(shown) then",
        ),
        (
            "a newer version of what was delivered is a duplicate",
            "what is newer than the one delivered is shown",
            "  return shown and tonumber(score) >= tonumber(shown)",
            "  return shown",
        ),
        (
            "the memory is not asked",
            "a redelivered event is not shown twice",
            "  shown = redis.call('ZSCORE', memory, key)\n",
            "  shown = false\n",
        ),
        tests=("add",),
    ),
    *lib(
        "bytes",
        ("the smaller is the larger", "values are compared byte by byte", "return left > right", "return left < right"),
        ("the shorter is the larger", "a prefix is the smaller one", "return #a > #b", "return #a < #b"),
        tests=("add",),
    ),
    *lib(
        "now",
        (
            "whole seconds",
            "instants are of milliseconds",
            "time[1] * 1000 + math.floor(time[2] / 1000)",
            "time[1] * 1000",
        ),
        (
            "fractions of a millisecond",
            "instants are whole milliseconds",
            "time[1] * 1000 + math.floor(time[2] / 1000)",
            "time[1] * 1000 + time[2] / 1000",
        ),
        tests=("claim", "add", "open", "renew"),
    ),
    *lib(
        "schedule",
        (
            "no bound",
            "never past the bound",
            "return math.min(base + increment * records, bound)",
            "return base + increment * records",
        ),
        (
            "records do not postpone",
            "each record postpones by the increment",
            "return math.min(base + increment * records, bound)",
            "return math.min(base, bound)",
        ),
        (
            "the token stays",
            "a timeline that waits is nobody's",
            "  redis.call('HDEL', tokens, timeline)\n",
            "",
        ),
        (
            "what came meanwhile is forgotten by the schedule",
            "the schedule counts the open set",
            "struct.pack(SCHEDULE, base, bound, records))\n",
            "struct.pack(SCHEDULE, base, bound, 0))\n",
        ),
        (
            "a route is not looked at before it was",
            "whoever lets a timeline wait puts it down in the agenda",
            "  redis.call('ZADD', agenda, 'LT', due, waiting)\n",
            "  redis.call('ZADD', agenda, 'NX', due, waiting)\n",
        ),
        (
            "a retry is not put down",
            "whoever lets a timeline wait puts it down in the agenda",
            "  put_down(agenda, waiting, due)\n",
            "",
        ),
        (
            "the agenda keeps a route of which nothing waits",
            "idle daemons look only at what may be due",
            "    redis.call('ZREM', agenda, waiting)\n",
            "",
        ),
        (
            "the agenda loses a route of which something waits",
            "whoever lets a timeline wait puts it down in the agenda",
            "  if redis.call('EXISTS', waiting) == 0 then\n",
            "  if true then\n",
        ),
        tests=("close", "claim", "fail", "delete"),
    ),
    *lib(
        "head",
        (
            "what was closed is not known",
            "a second close is told so",
            "  redis.call('HSET', head, 'closed', id)\n",
            "",
        ),
        (
            "the tries of a digest outlive it",
            "a digest begins with its own tries",
            "'attempts', 'since', 'tries',\n",
            "'attempts', 'since',\n",
        ),
        (
            "first and last are the wrong way round",
            "first is the oldest, last the newest",
            "'first', -oldest[2], 'last', -newest[2]",
            "'first', -newest[2], 'last', -oldest[2]",
        ),
        tests=("close", "open"),
    ),
    *lib(
        "move",
        (
            "a set with lost values cannot be moved",
            "lost values stop nobody",
            "  if redis.call('EXISTS', from) == 1 then\n    redis.call('UNLINK', to)\n",
            "  if true then\n    redis.call('UNLINK', to)\n",
        ),
        tests=("merge", "adopt", "open"),
    ),
    *lib(
        "union",
        (
            "records that met their key are not counted",
            "the ledger balances",
            "        met = met + 1\n",
            "",
        ),
        (
            "of records that met their key the newer loses",
            "of two with one key the newer stays",
            "contend(into_index, into_values, key, score, value) == REPEATED",
            "redis.call('HGET', into_values, key) == value",
        ),
        (
            "one record too many",
            "capacity is exact",
            "index, capacity, capacity + PER_CALL - 1)",
            "index, capacity + 1, capacity + PER_CALL)",
        ),
        (
            "the values of what went stay",
            "memory is bounded by capacity",
            "    redis.call('HDEL', values, unpack(over))\n",
            "",
        ),
        (
            "only the first page is taken over",
            "all records go over",
            "for start = 0, redis.call('ZCARD', index) - 1, PER_CALL do",
            "for start = 0, 0 do",
        ),
        tests=("merge", "adopt", "open"),
    ),
    *lib(
        "ledger",
        (
            "a call that was cut off is forgotten by the next one",
            "the ledger is exact or says that it is not",
            "local differences = { -1 }",
            "local differences = { -1000 }",
        ),
        (
            "nobody says what is begun",
            "the ledger is exact or says that it is not",
            ", 'unfinished:' .. field, 1)",
            ", 'unfinished:' .. field, 0)",
        ),
        tests=("cut_off",),
    ),
)

MUTANTS = (*ACQUAINTANCES, *ADD, *LIBRARY)
