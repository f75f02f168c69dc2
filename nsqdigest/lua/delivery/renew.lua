-- renew: a longer lease for a delivery that is still under way.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)
-- RETURNS { 'renewed' | 'stale' }
-- ERRORS none of its own.
-- EFFECT the lease ends later. Nothing else changes.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/schedule.lua

local now, timeline = now_ms(ARGV[1]), ARGV[2]
if redis.call('HGET', tokens, timeline) ~= ARGV[3] then
  return { 'stale' }
end
begin_writes(agenda)
redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)
return { 'renewed' }
