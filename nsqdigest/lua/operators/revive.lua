-- revive: a dead digest is to be sent again, under its own id. It becomes the snapshot of a timeline of its own, which
-- is due at once, also in quiet hours: claimed, opened, closed or buried again like any other, whatever the timeline
-- that it came from does meanwhile. No limit of timelines refuses it, for it was there before.
--
-- KEYS  as lib/timeline_keys.lua has them, of the timeline of its own, then
--       15 dead zset   16 dead details hash   17 dead set of this id   18 dead values of this id
-- ARGV  1 now (ms, '' = Redis' clock)   2 id   3 the timeline of its own
--       4 attempts made, 5 opened (ms), 6 iteration, 7 superseded, 8 over capacity, 9 next earliest (ms),
--       10 cancelled, as it was buried
-- RETURNS { 'revived', records }
--         { 'already' }: it was revived before and is on its way
--         { 'unknown' }: no such digest is dead
-- ERRORS none of its own.
-- EFFECT its records move back from the dead store, and its details are gone from there.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local dead, dead_details, dead_index, dead_values = unpack(KEYS, 15, 18)
local now, id, timeline = now_ms(ARGV[1]), ARGV[2], ARGV[3]

local known, under_way = redis.call('HEXISTS', schedules, timeline) == 1, redis.call('EXISTS', snapshot) == 1
if known and under_way then
  begin_writes(agenda)
  redis.call('HDEL', dead_details, id) -- both are left where a call was cut off here
  redis.call('ZREM', dead, id)
  return { 'already' }
end
local records = under_way and snapshot or dead_index
if not redis.call('ZSCORE', dead, id) or redis.call('EXISTS', records) == 0 then
  return { 'unknown' }
end
begin_writes(agenda)
begin_count(ledger, 'buried')
redis.call('ZADD', waiting, EXEMPT, timeline)
put_down(agenda, waiting, EXEMPT)
-- The whole head anew: it may have been revived and buried before, and its timeline not yet forgotten.
redis.call('HSET', heads, timeline, string.format(
  ' iteration=%s id=%s opened=%s total=%d superseded=%s capacity=%s next=%s since=%d attempts=%s tries=0',
  ARGV[6], id, ARGV[5], redis.call('ZCARD', records), ARGV[7], ARGV[8], ARGV[9], now, ARGV[4])
  .. (ARGV[10] ~= '0' and ' cancelled=' .. ARGV[10] or ''))
redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, EXEMPT, EXEMPT, 0))
if not known then
  redis.call('INCR', timeline_count)
end
local moved = redis.call('ZCARD', dead_index)
move(dead_values, snapshot_values) -- before the index: what open finds there is whole
move(dead_index, snapshot)
redis.call('HDEL', dead_details, id)
redis.call('ZREM', dead, id)
end_lease(leased, tokens, timeline)
-- Last: of what is listed without details upkeep learns by a ledger that is not exact.
end_count(ledger, 'buried', { 'snapshots', moved, 'buried', -moved })
return { 'revived', redis.call('ZCARD', snapshot) }
