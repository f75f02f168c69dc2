-- drop_dead: one digest leaves the dead store for good (it was the oldest of a full store, or its operator said so).
--
-- KEYS  1 dead zset   2 dead details hash   3 dead set of this id   4 dead values of this id; then, where its details
--       are known, 5 ledger hash of its route   6 digest, 7 digest values of the timeline that a revival makes of it
-- ARGV  1 id   2 how many digests may stay: it goes only where more are dead ('': however many there are)
-- RETURNS { 'dropped', records } | { 'unknown' } | { 'within' }: no more are dead than may stay
-- ERRORS none of its own.
-- EFFECT its records count as deleted, and no longer as buried. One that is listed and has no details was dropped or
--        revived by a call that was cut off: its records have left, and it is listed no longer.
--
-- @include lib/ledger.lua

local dead, dead_details, dead_index, dead_values, ledger, revived, revived_values = unpack(KEYS)
local id = ARGV[1]
if not redis.call('ZSCORE', dead, id) then
  return { 'unknown' }
end
if ARGV[2] ~= '' and redis.call('ZCARD', dead) <= tonumber(ARGV[2]) then
  return { 'within' }
end
redis.call('HDEL', dead_details, '') -- is never there: it opens the way, for a full Redis refuses HINCRBY first
if redis.call('HEXISTS', dead_details, id) == 0 then
  redis.call('ZREM', dead, id)
  return { 'dropped', 0 }
end
local total = redis.call('ZCARD', dead_index)
begin_count(ledger, 'deleted')
if redis.call('EXISTS', revived) == 0 then
  redis.call('UNLINK', dead_index, dead_values, revived_values) -- a revival that was cut off may have moved the values
end
redis.call('HDEL', dead_details, id)
redis.call('ZREM', dead, id)
-- Last: of what is listed without details upkeep learns by a ledger that is not exact.
end_count(ledger, 'deleted', { 'deleted', total, 'buried', -total })
return { 'dropped', total }
