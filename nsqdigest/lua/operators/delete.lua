-- delete: a timeline goes, whatever state it is in, with all that it holds. Its operator said so.
--
-- KEYS  as lib/timeline_keys.lua has them; then 15 ends zset   16 dead zset   17 dead details hash   18 of the digest
--       that the caller saw on its way to the dead store, dead values
-- ARGV  1 timeline   2 id of the digest that the caller saw on its way to the dead store ('': none)
-- RETURNS { 'deleted', records } | { 'unknown' }; whoever had it leased is stale from here on
--         { 'changed' }: another digest, or none, is on its way to the dead store; nothing changed
-- ERRORS none of its own.
-- EFFECT all keys of its own are gone, the memory of what was delivered with them. Its records count as deleted; of an
--        event that comes again nobody knows that it was there.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/burial.lua

local timeline, burying = ARGV[1], ARGV[2]

local known = redis.call('HGET', schedules, timeline)
local open, in_snapshot = redis.call('ZCARD', index), redis.call('ZCARD', snapshot)
if not is_as_seen(redis.call('HGET', heads, timeline), in_snapshot, burying) then
  return { 'changed' }
end
begin_writes(agenda)
if known then
  begin_count(ledger, 'deleted')
end
-- Of a timeline that is not known its memory may be left, or records that an add which was cut off did not count.
redis.call('UNLINK', index, values, snapshot, snapshot_values, memory, KEYS[15])
forget_burial(KEYS[16], KEYS[17], KEYS[18], in_snapshot, burying)
redis.call('HDEL', heads, timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline, 'x' .. timeline)
if known then
  redis.call('HDEL', schedules, timeline)
  redis.call('DECR', timeline_count)
end
redis.call('ZREM', waiting, timeline)
strike_out(agenda, waiting)
end_lease(leased, tokens, timeline)
if not known then
  return { 'unknown' }
end
-- Last: while the timeline is known its records are counted by its schedule. Those of an add that was cut off are
-- counted nowhere.
local _, _, counted = unpack_schedule(known, 0)
local uncounted = math.max(0, open - counted)
end_count(ledger, 'deleted', { 'deleted', open + in_snapshot, 'added', uncounted, 'open', uncounted - open,
  'snapshots', -in_snapshot })
return { 'deleted', open + in_snapshot }
