-- fail, defer: the delivery did not succeed, or was not tried. The snapshot stays as it is; the timeline waits until the
-- given instant. A post is counted here, when it has ended: one that its daemon did not outlive is in no count.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 timeline   2 token   3 when to try again (ms)   4 posts that ended: 1 (fail), 0 (defer)
-- RETURNS { 'waiting' | 'stale' }
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua

local timeline, instant, posts = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('HGET', tokens, timeline) ~= ARGV[2] then
  return { 'stale' }
end
begin_writes(agenda)
wait_again(waiting, schedules, agenda, timeline, instant, instant, 0, redis.call('ZCARD', index))
if posts > 0 and redis.call('HEXISTS', head, 'id') == 1 then
  redis.call('HINCRBY', head, 'attempts', posts)
  redis.call('HINCRBY', head, 'tries', posts)
end
end_lease(leased, tokens, timeline)
return { 'waiting' }
