-- bury: the digest can not be delivered. Its snapshot moves to the dead store under its own id; the timeline goes on as after a close.
--
-- KEYS  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 ledger hash
--       6 head hash   7 index zset   8 snapshot index   9 snapshot values
--       10 dead zset   11 dead details hash   12 dead index zset of this id   13 dead values of this id
--       14 agenda zset
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 id   5 base, 6 bound (ms) of the next digest
--       7 increment (ms)   8 details of the dead digest (opaque)
-- RETURNS { 'buried', digests in the dead store } | { 'already' } | { 'stale' }
-- ERRORS none of its own.
--
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua

local waiting, leased, tokens, schedules, ledger = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local head, index, snapshot, snapshot_values = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local dead, dead_details, dead_index, dead_values = KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local now, timeline, token, id = now_ms(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

local told = redis.call('HMGET', head, 'id', 'closed', 'total')
if told[2] == id then
  return { 'already' }
end
if redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id then
  return { 'stale' }
end

local total = tonumber(told[3])
wait_again(waiting, leased, tokens, schedules, KEYS[14], timeline, tonumber(ARGV[5]), tonumber(ARGV[6]),
  tonumber(ARGV[7]), redis.call('ZCARD', index))
move(snapshot, dead_index)
move(snapshot_values, dead_values)
redis.call('ZADD', dead, now, id)
redis.call('HSET', dead_details, id, ARGV[8])
end_digest(head, id)
count(ledger, 'snapshots', -total)
count(ledger, 'buried', total)
return { 'buried', redis.call('ZCARD', dead) }
