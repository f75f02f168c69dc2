-- flush: a waiting timeline is due now, whatever its policy or a retry says. Records that come meanwhile do not
-- postpone it.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 from when on it is due (ms, '' = now; what is exempt from quiet
--       hours has an instant of its own)
-- RETURNS { 'due' }: it is due now, or was before
--         { 'leased' }: it is being delivered already; nothing changed
--         { 'unknown' }: there is none
-- ERRORS none of its own.
-- EFFECT base and bound end then; the records and the iteration stay.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/schedule.lua

local now, timeline = now_ms(ARGV[1]), ARGV[2]
local due = ARGV[3] == '' and now or tonumber(ARGV[3])
local known = redis.call('HGET', schedules, timeline)
if not known then
  return { 'unknown' }
end
if not redis.call('ZSCORE', waiting, timeline) then
  return { 'leased' }
end
local base, bound, records = unpack_schedule(known, now)
if bound > due then
  begin_writes(agenda)
  redis.call('ZADD', waiting, math.min(base, due), timeline)
  put_down(agenda, waiting, math.min(base, due))
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, math.min(base, due), due, records))
end
return { 'due' }
