-- delete: a timeline goes, whatever state it is in, with all that it holds. Its operator said so.
--
-- KEYS  as lib/timeline_keys.lua has them; then 15 ends zset
-- ARGV  1 timeline
-- RETURNS { 'deleted', records } | { 'unknown' }; whoever had it leased is stale from here on
-- ERRORS none of its own.
-- EFFECT all keys of its own are gone, the memory of what was delivered with them. Its records count as deleted; of an
--        event that comes again nobody knows that it was there.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local timeline = ARGV[1]

local known = redis.call('HEXISTS', schedules, timeline) == 1
local open, in_snapshot = redis.call('ZCARD', index), redis.call('ZCARD', snapshot)
begin_writes(agenda)
if known then
  begin_count(ledger, 'deleted')
end
-- Of a timeline that is not known its memory may be left, or records that an add which was cut off did not count.
redis.call('UNLINK', index, values, snapshot, snapshot_values, memory, KEYS[15])
redis.call('HDEL', heads, timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline, 'x' .. timeline)
if known then
  end_count(ledger, 'deleted', { 'deleted', open + in_snapshot, 'open', -open, 'snapshots', -in_snapshot })
  redis.call('HDEL', schedules, timeline)
  redis.call('DECR', timeline_count)
end
redis.call('ZREM', waiting, timeline)
strike_out(agenda, waiting)
end_lease(leased, tokens, timeline)
if not known then
  return { 'unknown' }
end
return { 'deleted', open + in_snapshot }
