-- bury: the digest cannot be delivered. Its snapshot moves to the dead store under its own id; the timeline goes on as after a close.
--
-- KEYS  as lib/timeline_keys.lua has them, then
--       15 dead zset   16 dead details hash   17 dead set of this id   18 dead values of this id
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 id   5 base, 6 bound (ms) of the next digest
--       7 increment (ms)   8 how long to remember its keys (ms, 0: not at all)   9 most entries of the memory
--       10 details of the dead digest (opaque)
-- RETURNS { 'buried', digests in the dead store } | { 'already' } | { 'stale' }
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/memory.lua

local dead, dead_details, dead_index, dead_values = unpack(KEYS, 15, 18)
local now, timeline, token, id = now_ms(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

local told = redis.call('HMGET', head, 'id', 'closed')
if told[2] == id then
  return { 'already' }
end
if redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id then
  return { 'stale' }
end

local total = redis.call('ZCARD', snapshot) -- not the head's: a call that was cut off may have moved it
begin_writes(agenda)
wait_again(waiting, schedules, agenda, timeline, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]),
  redis.call('ZCARD', index))
-- A redelivered event is in the dead digest already: shown in the next one, too, it would come twice with a revival.
remember(memory, snapshot, tonumber(ARGV[8]), tonumber(ARGV[9]))
if redis.call('HEXISTS', dead_details, id) == 0 then
  redis.call('HSET', dead_details, id, ARGV[10])
end
redis.call('ZADD', dead, now, id)
begin_count(ledger, 'buried')
redis.call('HSET', head, 'burying', id)
move(snapshot, dead_index)
move(snapshot_values, dead_values)
end_digest(head, id)
end_count(ledger, 'buried', { 'buried', total, 'snapshots', -total })
end_lease(leased, tokens, timeline)
return { 'buried', redis.call('ZCARD', dead) }
