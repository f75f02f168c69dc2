-- flush: a waiting timeline is due now, whatever its policy or a retry says. Records that come meanwhile do not
-- postpone it.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline
-- RETURNS { 'due' }: it is due now, or was before
--         { 'leased' }: it is being delivered already; nothing changed
--         { 'unknown' }: there is none
-- ERRORS none of its own.
-- EFFECT base and bound end now; the records and the iteration stay.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/schedule.lua

local now, timeline = now_ms(ARGV[1]), ARGV[2]
local known = redis.call('HGET', schedules, timeline)
if not known then
  return { 'unknown' }
end
if not redis.call('ZSCORE', waiting, timeline) then
  return { 'leased' }
end
local base, bound, records = unpack_schedule(known, now)
if bound > now then
  begin_writes(agenda)
  redis.call('ZADD', waiting, math.min(base, now), timeline)
  put_down(agenda, waiting, math.min(base, now))
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, math.min(base, now), now, records))
end
return { 'due' }
