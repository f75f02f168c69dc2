-- drop_dead: one digest leaves the dead store for good (it was the oldest of a full store, or its operator said so).
--
-- KEYS  1 dead zset   2 dead details hash   3 dead set of this id   4 dead values of this id   5 ledger hash of its
--       route
-- ARGV  1 id   2 how many digests may stay: it goes only where more are dead ('': however many there are)
-- RETURNS { 'dropped', records } | { 'unknown' } | { 'within' }: no more are dead than may stay
-- ERRORS none of its own.
-- EFFECT its records count as deleted, and no longer as buried.
--
-- @include lib/ledger.lua

local dead, dead_details, dead_index, dead_values, ledger = unpack(KEYS)
local id = ARGV[1]
if not redis.call('ZSCORE', dead, id) then
  return { 'unknown' }
end
if ARGV[2] ~= '' and redis.call('ZCARD', dead) <= tonumber(ARGV[2]) then
  return { 'within' }
end
redis.call('HDEL', dead_details, '') -- is never there: it opens the way, for a full Redis refuses HINCRBY first
local total = redis.call('ZCARD', dead_index)
begin_count(ledger, 'deleted')
redis.call('UNLINK', dead_index, dead_values)
end_count(ledger, 'deleted', { 'deleted', total, 'buried', -total })
redis.call('HDEL', dead_details, id)
redis.call('ZREM', dead, id) -- last: what is listed can be dropped again
return { 'dropped', total }
