-- drop_dead: one digest leaves the dead store for good (it was the oldest of a full store, or its operator said so).
--
-- KEYS  1 dead zset   2 dead details hash   3 dead set of this id   4 dead values of this id   5 ledger hash of its route
-- ARGV  1 id
-- RETURNS { 'dropped', records } | { 'unknown' }
-- ERRORS none of its own.
--
-- @include lib/ledger.lua

local dead, dead_details, dead_index, dead_values, ledger = unpack(KEYS)
local id = ARGV[1]
if redis.call('ZREM', dead, id) == 0 then
  return { 'unknown' }
end
local total = redis.call('ZCARD', dead_index)
redis.call('HDEL', dead_details, id)
redis.call('UNLINK', dead_index, dead_values)
count(ledger, 'buried', -total)
count(ledger, 'deleted', total)
return { 'dropped', total }
