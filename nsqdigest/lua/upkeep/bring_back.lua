-- bring_back: Redis' clock went back. Timelines of a route that wait for an instant which the clock wrote while it was
-- ahead come back to the latest one that their policy, or a retry, allows now.
--
-- KEYS  1 waiting zset   2 schedule hash   3 heads hash   4 agenda zset
-- ARGV  1 the latest instant (ms) that the policy allows   2 the latest one (ms) of a digest that waits for another
--       attempt, not before the policy's   3 how far the clock went back (ms)   4 number of timelines to pass over: an
--       earlier call looked at them, and they stay   5 most timelines to look at (1-500)
-- RETURNS { timelines looked at, of these brought back }
-- ERRORS none of its own.
-- EFFECT an instant that lies further ahead than the clock went back stays: another file's rarer policy wrote it.
--
-- @include lib/schedule.lua
-- @include lib/head.lua

local waiting, schedules, heads, agenda = unpack(KEYS)
local latest, latest_retry, back = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local until_text = format('%d', latest_retry + back)
local found =
  redis.call('ZRANGEBYSCORE', waiting, '(' .. ARGV[1], until_text, 'WITHSCORES', 'LIMIT', ARGV[4], ARGV[5])
local names, instants = {}, {}
for place = 1, #found, 2 do
  names[#names + 1], instants[#instants + 1] = found[place], tonumber(found[place + 1])
end
if #names == 0 then
  return { 0, 0 }
end

local known, packed = redis.call('HMGET', heads, unpack(names)), redis.call('HMGET', schedules, unpack(names))
local scores, kept, first = {}, {}, math.huge
for place, timeline in ipairs(names) do
  local limit = field_of(known[place], 'id') and latest_retry or latest
  if instants[place] > limit and instants[place] <= limit + back then
    scores[#scores + 1], scores[#scores + 2] = limit, timeline
    first = math.min(first, limit)
    if packed[place] then
      local base, bound, records = unpack_schedule(packed[place], limit)
      kept[#kept + 1] = timeline
      kept[#kept + 1] = struct.pack(SCHEDULE, math.min(base, limit), math.min(bound, limit), records)
    end
  end
end
if #scores > 0 then
  begin_writes(agenda)
  if #kept > 0 then
    redis.call('HSET', schedules, unpack(kept))
  end
  redis.call('ZADD', waiting, unpack(scores))
  put_down(agenda, waiting, first)
end
return { #names, #scores / 2 }
