-- delete: a timeline goes, whatever state it is in, with all that it holds. Its operator said so.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 timeline
-- RETURNS { 'deleted', records } | { 'unknown' }; whoever had it leased is stale from here on
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local timeline = ARGV[1]

local known = redis.call('HDEL', schedules, timeline) == 1
local open, in_snapshot = redis.call('ZCARD', index), redis.call('ZCARD', snapshot)
-- Of a timeline that is not known its memory may be left, or records that a broken-off add did not count.
redis.call('UNLINK', head, index, values, snapshot, snapshot_values, memory)
if not known then
  return { 'unknown' }
end
redis.call('ZREM', waiting, timeline)
strike_out(agenda, waiting)
redis.call('ZREM', leased, timeline)
redis.call('HDEL', tokens, timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
redis.call('DECR', timeline_count)
count(ledger, 'open', -open)
count(ledger, 'snapshots', -in_snapshot)
count(ledger, 'deleted', open + in_snapshot)
return { 'deleted', open + in_snapshot }
