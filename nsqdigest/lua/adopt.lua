-- adopt: a timeline goes over to another route, all its records into the open set there. A digest that was under way ends so: what
-- its receiver would be told names the route, so they go out under a new id.
--
-- KEYS  of the route it leaves:  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 losses hash   6 ledger hash
--                                7 head hash   8 index zset   9 value hash   10 snapshot index   11 snapshot values   12 memory zset
--       of the route it goes to: 13 waiting zset   14 schedule hash   15 losses hash   16 ledger hash
--                                17 head hash   18 index zset   19 value hash   20 memory zset
--       21 count of timelines   22 agenda zset
-- ARGV  1 timeline   2 capacity of the route it goes to (records)
-- RETURNS { 'adopted', records } | { 'unknown' }; whoever had it leased is stale from here on
-- ERRORS none of its own. Both ledgers stay balanced: what went over is dropped:adopted here and added there.
--
-- @include lib/bytes.lua
-- @include lib/records.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local waiting, leased, tokens, schedules, losses, ledger = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local head, index, values, snapshot, snapshot_values, memory = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local to_waiting, to_schedules, to_losses, to_ledger, to_head = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local to_index, to_values, to_memory = KEYS[18], KEYS[19], KEYS[20]
local timeline, capacity = ARGV[1], tonumber(ARGV[2])

local known = redis.call('HGET', schedules, timeline)
if not known then
  return { 'unknown' }
end
redis.call('ZREM', waiting, timeline)
strike_out(KEYS[22], waiting)
redis.call('ZREM', leased, timeline)
redis.call('HDEL', tokens, timeline)
redis.call('HDEL', schedules, timeline)

local open, in_snapshot, held = redis.call('ZCARD', index), redis.call('ZCARD', snapshot), redis.call('ZCARD', to_index)
local superseded = unite(snapshot, snapshot_values, to_index, to_values) + unite(index, values, to_index, to_values)
local over_capacity = trim(to_index, to_values, capacity)
local records = redis.call('ZCARD', to_index)

local told = redis.call('HMGET', head, 'iteration', 'superseded', 'capacity')
local lost = redis.call('HMGET', losses, 's' .. timeline, 'c' .. timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
count(to_losses, 's' .. timeline, superseded + (told[2] or 0) + (lost[1] or 0))
count(to_losses, 'c' .. timeline, over_capacity + (told[3] or 0) + (lost[2] or 0))

local theirs, base, bound = redis.call('HGET', to_schedules, timeline), struct.unpack(SCHEDULE, known)
if theirs then
  base, bound = struct.unpack(SCHEDULE, theirs)
  redis.call('DECR', KEYS[21])
else
  redis.call('ZADD', to_waiting, base, timeline)
  put_down(KEYS[22], to_waiting, base)
  redis.call('HSET', to_head, 'iteration', (told[1] or 0) - (in_snapshot > 0 and 1 or 0))
end
redis.call('HSET', to_schedules, timeline, struct.pack(SCHEDULE, base, bound, records))
redis.call('UNLINK', head)

if redis.call('EXISTS', memory) == 1 then
  local left_ms = math.max(redis.call('PTTL', memory), redis.call('PTTL', to_memory))
  redis.call('ZUNIONSTORE', to_memory, 2, to_memory, memory, 'AGGREGATE', 'MIN')
  redis.call('PEXPIRE', to_memory, left_ms)
  redis.call('UNLINK', memory)
end

count(ledger, 'open', -open)
count(ledger, 'snapshots', -in_snapshot)
count(ledger, 'dropped:adopted', open + in_snapshot)
count(to_ledger, 'added', open + in_snapshot)
count(to_ledger, 'open', records - held)
count(to_ledger, 'superseded', superseded)
count(to_ledger, 'dropped:capacity', over_capacity)
return { 'adopted', open + in_snapshot }
