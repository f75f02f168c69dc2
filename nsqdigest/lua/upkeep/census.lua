-- census: sets the count of a partition's timelines to how many there are.
--
-- KEYS  1 count of timelines   2 agenda zset   then the schedule hash of every route that ever was
-- ARGV  none
-- RETURNS { by how much the count was off }
-- ERRORS none of its own.
-- EFFECT nothing else: which timelines there are, the schedule hashes say.
--
-- @include lib/schedule.lua

local timeline_count, agenda, there = KEYS[1], KEYS[2], 0
for number = 3, #KEYS do
  there = there + redis.call('HLEN', KEYS[number])
end
local difference = there - (tonumber(redis.call('GET', timeline_count)) or 0)
if difference ~= 0 then
  begin_writes(agenda)
  redis.call('INCRBY', timeline_count, difference)
end
return { difference }
