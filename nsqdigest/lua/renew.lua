-- renew: a longer lease for a delivery that is still under way.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)
-- RETURNS { 'renewed' | 'stale' }
-- ERRORS none of its own. ZREM first: ZADD alone is refused by a full Redis, and deliveries must go on there.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua

local now, timeline = now_ms(ARGV[1]), ARGV[2]
if redis.call('HGET', tokens, timeline) ~= ARGV[3] then
  return { 'stale' }
end
redis.call('ZREM', leased, timeline)
redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)
return { 'renewed' }
