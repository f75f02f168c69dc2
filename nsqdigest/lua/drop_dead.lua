-- drop_dead: one digest leaves the dead store for good (it was the oldest of a full store, or its operator said so).
--
-- KEYS  1 dead zset   2 dead details hash   3 dead index zset of this id   4 dead values of this id   5 ledger hash of its route
-- ARGV  1 id
-- RETURNS { 'dropped', records } | { 'unknown' }
-- ERRORS none of its own.
--
-- @include lib/ledger.lua

if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return { 'unknown' }
end
local total = redis.call('ZCARD', KEYS[3])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[3], KEYS[4])
count(KEYS[5], 'buried', -total)
count(KEYS[5], 'deleted', total)
return { 'dropped', total }
