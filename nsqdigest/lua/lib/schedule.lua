-- The schedule of a timeline: base and bound (absolute ms) and the number of records in its open set, packed as one
-- field of the route's schedule hash. While it waits, due = min(base + increment * records, bound). Nothing else moves
-- it. The waiting zset holds an instant that is never after the due one: records only push it back, so add leaves the
-- score alone (moving it is what costs most in Redis) and claim works out the exact one when the score comes up.
-- Where base and bound are EXEMPT it is due at once, and exempt from its policy: an urgent record came.
local SCHEDULE, SCHEDULE_BYTES, FURTHEST, EXEMPT = '>I8I8I4', 20, 2 ^ 53, 1

-- Returns base, bound and records. Where data was lost, or something else wrote it, the timeline is due at the given
-- instant, and none of its records was counted.
local function unpack_schedule(packed, otherwise)
  if packed and #packed == SCHEDULE_BYTES then
    local base, bound, records = struct.unpack(SCHEDULE, packed)
    if base < FURTHEST and bound < FURTHEST then
      return base, bound, records
    end
  end
  return otherwise, otherwise, 0
end

local function due_ms(base, bound, increment, records)
  return math.min(base + increment * records, bound)
end

-- A partition's agenda holds, for each route of which timelines wait (by the name of its waiting zset), an instant
-- before which nothing of it is due. Whoever lets a timeline wait puts it down here; only claim puts it off. So an idle
-- daemon looks at one small zset, and not at all routes.
local function put_down(agenda, waiting, due)
  redis.call('ZADD', agenda, 'LT', due, waiting)
end

-- Where nothing of a route waits any more, nobody need look.
local function strike_out(agenda, waiting)
  if redis.call('EXISTS', waiting) == 0 then
    redis.call('ZREM', agenda, waiting)
  end
end

-- A script may be stopped between any two of its writes (a right is taken away, a key has another type), so each adds
-- first and removes last: what is cut off leaves a timeline in two places, never in none, and the next claim or
-- maintenance mends that. A full Redis refuses the first write of a script if that could need memory: this one cannot,
-- and opens the way.
local function begin_writes(agenda)
  redis.call('ZREM', agenda, '') -- is never there
end

-- leased -> waiting, in two halves: what the script does else stands between them.
local function wait_again(waiting, schedules, agenda, timeline, base, bound, increment, records)
  local due = due_ms(base, bound, increment, records)
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, records))
  redis.call('ZADD', waiting, due, timeline)
  put_down(agenda, waiting, due)
end

local function end_lease(leased, tokens, timeline)
  redis.call('HDEL', tokens, timeline)
  redis.call('ZREM', leased, timeline)
end
