-- revive: a dead digest is to be sent again, under its own id. It becomes the snapshot of a timeline of its own, which is due
-- now: claimed, opened, closed or buried again like any other, whatever the timeline that it came from does meanwhile. No limit
-- of timelines refuses it, for it was there before.
--
-- KEYS  as lib/timeline_keys.lua has them, of the timeline of its own, then
--       15 dead zset   16 dead details hash   17 dead set of this id   18 dead values of this id
-- ARGV  1 now (ms, '' = Redis' clock)   2 id   3 the timeline of its own
--       4 attempts made, 5 opened (ms), 6 iteration, 7 superseded, 8 over capacity, 9 next earliest (ms), as it was buried
-- RETURNS { 'revived', records }
--         { 'already' }: it was revived before and is on its way
--         { 'unknown' }: no such digest is dead
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua

local dead, dead_details, dead_index, dead_values = unpack(KEYS, 15, 18)
local now, id, timeline = now_ms(ARGV[1]), ARGV[2], ARGV[3]

if redis.call('HEXISTS', schedules, timeline) == 1 then
  return { 'already' }
end
if not redis.call('ZSCORE', dead, id) or redis.call('EXISTS', dead_index) == 0 then
  return { 'unknown' }
end
redis.call('ZREM', dead, id)
redis.call('HDEL', dead_details, id)
move(dead_index, snapshot)
move(dead_values, snapshot_values)
redis.call('HSET', head, 'id', id, 'attempts', ARGV[4], 'opened', ARGV[5], 'iteration', ARGV[6], 'superseded', ARGV[7],
  'capacity', ARGV[8], 'next', ARGV[9], 'since', now, 'tries', 0)
local total = describe(head, snapshot)
redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, now, now, 0))
redis.call('ZADD', waiting, now, timeline)
put_down(agenda, waiting, now)
redis.call('INCR', timeline_count)
count(ledger, 'buried', -total)
count(ledger, 'snapshots', total)
return { 'revived', total }
