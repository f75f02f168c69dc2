-- maintenance: timelines whose lease ran out (their worker died or hangs) wait again, due when they were due before.
--
-- KEYS  per route: waiting zset, leased zset, tokens hash, schedule hash; then the agenda zset
-- ARGV  1 now (ms, '' = Redis' clock)   2 most timelines per route (1-500)
-- RETURNS { how many came back }
-- ERRORS none of its own.
--
-- @include lib/now.lua
-- @include lib/schedule.lua

local PER_CALL = 500 -- of keys: unpack has its limit
local now, limit = now_ms(ARGV[1]), tonumber(ARGV[2])
local returned = 0

-- Most often nothing at all is leased: one look tells.
local anything_leased = 0
for first = 2, #KEYS, 4 * PER_CALL do
  local leases = {}
  for number = first, math.min(first + 4 * PER_CALL, #KEYS) - 1, 4 do
    leases[#leases + 1] = KEYS[number]
  end
  anything_leased = anything_leased + redis.call('EXISTS', unpack(leases))
end
if anything_leased == 0 then
  return { 0 }
end

for route = 1, (#KEYS - 1) / 4 do
  local waiting, leased, tokens, schedules = unpack(KEYS, 4 * route - 3, 4 * route)
  local names = redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'LIMIT', 0, limit)
  if #names > 0 then
    local packed, schedule, first_due = redis.call('HMGET', schedules, unpack(names)), {}, math.huge
    for number = 1, #names do
      -- Claim left the instant at which the timeline was due as both; without it (never, unless data was lost) it is due now.
      local instant = packed[number] and struct.unpack(SCHEDULE, packed[number]) or now
      schedule[#schedule + 1], schedule[#schedule + 2] = instant, names[number]
      first_due = math.min(first_due, instant)
    end
    redis.call('ZREM', leased, unpack(names))
    redis.call('HDEL', tokens, unpack(names))
    redis.call('ZADD', waiting, unpack(schedule))
    put_down(KEYS[#KEYS], waiting, first_due)
    returned = returned + #names
  end
end
return { returned }
