-- renew: a longer lease for a delivery that is still under way.
--
-- KEYS  1 leased zset   2 tokens hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)
-- RETURNS { 'renewed' | 'stale' }
-- ERRORS none of its own. ZREM first: ZADD alone is refused by a full Redis, and deliveries must go on there.
--
-- @include lib/now.lua

local now, timeline = now_ms(ARGV[1]), ARGV[2]
if redis.call('HGET', KEYS[2], timeline) ~= ARGV[3] then
  return { 'stale' }
end
redis.call('ZREM', KEYS[1], timeline)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[4]), timeline)
return { 'renewed' }
