-- delete: a timeline goes, whatever state it is in, with all that it holds. Its operator said so.
--
-- KEYS  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 losses hash   6 ledger hash   7 count of timelines
--       8 head hash   9 index zset   10 value hash   11 snapshot index   12 snapshot values   13 memory zset   14 agenda zset
-- ARGV  1 timeline
-- RETURNS { 'deleted', records } | { 'unknown' }; whoever had it leased is stale from here on
-- ERRORS none of its own.
--
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local waiting, leased, tokens, schedules, losses, ledger = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local index, snapshot, timeline = KEYS[9], KEYS[11], ARGV[1]

local known = redis.call('HDEL', schedules, timeline) == 1
local open, in_snapshot = redis.call('ZCARD', index), redis.call('ZCARD', snapshot)
-- Of a timeline that is not known its memory may be left, or records that a broken-off add did not count.
redis.call('UNLINK', unpack(KEYS, 8, 13))
if not known then
  return { 'unknown' }
end
redis.call('ZREM', waiting, timeline)
strike_out(KEYS[14], waiting)
redis.call('ZREM', leased, timeline)
redis.call('HDEL', tokens, timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
redis.call('DECR', KEYS[7])
count(ledger, 'open', -open)
count(ledger, 'snapshots', -in_snapshot)
count(ledger, 'deleted', open + in_snapshot)
return { 'deleted', open + in_snapshot }
