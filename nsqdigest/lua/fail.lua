-- fail, defer: the delivery did not succeed, or was not tried. The snapshot stays as it is; the timeline waits until the given instant.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 timeline   2 token   3 when to try again (ms)   4 attempts to take back: 0 (fail), 1 (defer, after an open)
-- RETURNS { 'waiting' | 'stale' }
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua

local timeline, instant, take_back = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HGET', tokens, timeline) ~= ARGV[2] then
  return { 'stale' }
end
wait_again(waiting, leased, tokens, schedules, agenda, timeline, instant, instant, 0, redis.call('ZCARD', index))
if take_back > 0 and redis.call('HEXISTS', head, 'id') == 1 then
  redis.call('HINCRBY', head, 'attempts', -take_back)
  redis.call('HINCRBY', head, 'tries', -take_back)
end
return { 'waiting' }
