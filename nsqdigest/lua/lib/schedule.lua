-- The schedule of a timeline: base and bound (absolute ms) and the number of records in its open set, packed as one field of
-- the route's schedule hash. While it waits, due = min(base + increment * records, bound). Nothing else moves it.
-- The waiting zset holds an instant that is never after the due one: records only push it back, so add leaves the score alone
-- (moving it is what costs most in Redis) and claim works out the exact one when the score comes up.
local SCHEDULE = '>I8I8I4'

local function due_ms(base, bound, increment, records)
  return math.min(base + increment * records, bound)
end

-- leased -> waiting. Begins with writes that a full Redis does not refuse.
local function wait_again(waiting, leased, tokens, schedules, timeline, base, bound, increment, records)
  redis.call('ZREM', leased, timeline)
  redis.call('HDEL', tokens, timeline)
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, records))
  redis.call('ZADD', waiting, due_ms(base, bound, increment, records), timeline)
end
