-- fail, defer: the delivery did not succeed, or was not tried. The snapshot stays as it is; the timeline waits until the given instant.
--
-- KEYS  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 head hash   6 index zset   7 agenda zset
-- ARGV  1 timeline   2 token   3 when to try again (ms)   4 attempts to take back: 0 (fail), 1 (defer, after an open)
-- RETURNS { 'waiting' | 'stale' }
-- ERRORS none of its own.
--
-- @include lib/schedule.lua

local timeline, instant, take_back = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HGET', KEYS[3], timeline) ~= ARGV[2] then
  return { 'stale' }
end
wait_again(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7], timeline, instant, instant, 0, redis.call('ZCARD', KEYS[6]))
if take_back > 0 and redis.call('HEXISTS', KEYS[5], 'id') == 1 then
  redis.call('HINCRBY', KEYS[5], 'attempts', -take_back)
  redis.call('HINCRBY', KEYS[5], 'tries', -take_back)
end
return { 'waiting' }
