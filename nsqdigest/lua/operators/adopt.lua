-- adopt: a timeline goes over to another route, all its records into the open set there. A digest that was under way
-- ends so: what its receiver would see names the route, so they go out under a new id.
--
-- KEYS  as lib/timeline_keys.lua has them, of the route it leaves; then the same of the route it goes to; then the ends
--       zsets of both; then the holds hash of the partition; then dead zset, dead details hash and, of the digest that
--       the caller saw on its way to the dead store, dead values
-- ARGV  1 timeline   2 capacity of the route it goes to (records)   3 its field among the holds, 4 that of the route it
--       goes to   5 now (ms, '' = Redis' clock)   6 id of the digest that the caller saw on its way to the dead store
--       ('': none)
-- RETURNS { 'adopted', records } | { 'unknown' }; whoever had it leased is stale from here on
--         { 'too-large' }: it is more than one call may move; nothing changed
--         { 'changed' }: another digest, or none, is on its way to the dead store; nothing changed
-- ERRORS none of its own. Both ledgers stay balanced: what went over is dropped:adopted here and added there.
-- EFFECT there it waits as long as here (not at all where an urgent record came while a digest was under way), or as
--        long as the timeline of that name which is there; whose memory of what was delivered and of ends takes in this
--        one's, and whose zone is the one that was named last. It stays muted or snoozed, unless the other one is. Here
--        nothing of it is left. A digest whose open or burial was cut off goes over with all its values. What a call
--        that was cut off copied is in a timeline that is known there, so it goes out; called again, it counts it once.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/union.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/burial.lua
-- @include lib/zone.lua
-- @include lib/move.lua

local to_waiting, _, _, to_schedules, to_heads, to_losses, to_ledger = unpack(KEYS, 15, 21)
local to_index, to_values, _, _, to_memory = unpack(KEYS, 24, 28)
local ends, to_ends, holds, dead, dead_details, dead_values = unpack(KEYS, 29, 34)
local MOST_ADOPTED = 8000 -- records
local MOST_REMEMBERED = 5000 -- keys, where both remember some
local timeline, capacity, now, burying = ARGV[1], tonumber(ARGV[2]), now_ms(ARGV[5]), ARGV[6]

local known, head = redis.call('HGET', schedules, timeline), redis.call('HGET', heads, timeline)
if not known then
  return { 'unknown' }
end
local open, in_snapshot = redis.call('ZCARD', index), redis.call('ZCARD', snapshot)
if open + in_snapshot > MOST_ADOPTED then
  return { 'too-large' }
end
if not is_as_seen(head, in_snapshot, burying) then
  return { 'changed' }
end
begin_writes(agenda)
begin_count(ledger, 'dropped:adopted')
begin_count(to_ledger, 'added')

-- A digest that was dropped from the dead store after its values had moved there: what is left of it goes.
if burying ~= '' and in_snapshot > 0 and redis.call('EXISTS', snapshot_values, dead_values) == 0 then
  begin_count(ledger, 'deleted')
  redis.call('UNLINK', snapshot)
  end_count(ledger, 'deleted', { 'deleted', in_snapshot, 'snapshots', -in_snapshot })
  in_snapshot = 0
end

-- Values that a call which was cut off had moved ahead of their index.
if in_snapshot == 0 then
  take_back_values(index, values, snapshot_values)
elseif burying ~= '' then
  take_back_values(snapshot, snapshot_values, dead_values)
end

local theirs = redis.call('HGET', to_schedules, timeline)
local base, bound, counted = unpack_schedule(theirs or known, 0)
if theirs then
  local zone, named_at = field_of(head, 'zone'), tonumber(field_of(head, 'zoned') or nil)
  local zoned = zone and named_at and with_zone(redis.call('HGET', to_heads, timeline) or '', zone, named_at)
  if zoned then
    redis.call('HSET', to_heads, timeline, zoned)
  end
else
  if field_of(head, 'urgent') then
    base, bound = EXEMPT, EXEMPT
  end
  counted = 0
  -- Known before it has records, which would be of no timeline otherwise.
  redis.call('ZADD', to_waiting, base, timeline)
  put_down(agenda, to_waiting, base)
  redis.call('HSET', to_schedules, timeline, struct.pack(SCHEDULE, base, bound, counted))
  redis.call('INCR', timeline_count)
  local iteration = (field_of(head, 'iteration') or 0) - (in_snapshot > 0 and 1 or 0)
  redis.call('HSET', to_heads, timeline, with_number(zone_fields(head), 'iteration', iteration))
end

local met_of_digest, copied_of_digest = unite(snapshot, snapshot_values, to_index, to_values)
local met, copied = unite(index, values, to_index, to_values)
local superseded = met + met_of_digest - copied - copied_of_digest
local over_capacity = trim(to_index, to_values, capacity, MOST_ADOPTED)
local records = redis.call('ZCARD', to_index)
redis.call('HSET', to_schedules, timeline, struct.pack(SCHEDULE, base, bound, records))

local lost = redis.call('HMGET', losses, 's' .. timeline, 'c' .. timeline, 'x' .. timeline)
local function add_losses(letter, by)
  if by ~= 0 then
    redis.call('HINCRBY', to_losses, letter .. timeline, by)
  end
end
add_losses('s', superseded + (field_of(head, 'superseded') or 0) + (lost[1] or 0))
add_losses('c', over_capacity + (field_of(head, 'capacity') or 0) + (lost[2] or 0))
add_losses('x', (field_of(head, 'cancelled') or 0) + (lost[3] or 0))

-- What both remember, for as long as the one that is remembered longer; of many keys the newest.
local function unite_memories(of, into)
  if redis.call('EXISTS', of) == 0 then
    return
  end
  local left_ms = math.max(redis.call('PTTL', of), redis.call('PTTL', into))
  if redis.call('EXISTS', into) == 0 then
    rename(of, into)
  else
    for start = 0, MOST_REMEMBERED - 1, PER_CALL do
      local page, entries = redis.call('ZRANGE', of, start, start + PER_CALL - 1, 'WITHSCORES'), {}
      if #page == 0 then
        break
      end
      for place = 1, #page, 2 do
        entries[place], entries[place + 1] = page[place + 1], page[place]
      end
      redis.call('ZADD', into, 'LT', unpack(entries))
    end
  end
  redis.call('PEXPIRE', into, left_ms)
end
unite_memories(memory, to_memory)
unite_memories(ends, to_ends)
-- By what its schedule has counted: a call that was cut off may have copied some of them.
end_count(to_ledger, 'added', { 'added', records - counted + superseded + over_capacity, 'open', records - counted,
  'superseded', superseded, 'dropped:capacity', over_capacity })

-- Holds that are over stand there until another one comes.
local function is_over(hold)
  return tonumber(string.match(hold or '', '^%S+ (%d+) ') or 0) <= now
end

local hold = redis.call('HGET', holds, ARGV[3])
if hold then
  if not is_over(hold) and is_over(redis.call('HGET', holds, ARGV[4])) then
    redis.call('HSET', holds, ARGV[4], hold)
  end
  redis.call('HDEL', holds, ARGV[3])
end
redis.call('UNLINK', index, values, snapshot, snapshot_values, memory, ends)
forget_burial(dead, dead_details, dead_values, in_snapshot, burying)
redis.call('HDEL', heads, timeline)
redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline, 'x' .. timeline)
redis.call('HDEL', schedules, timeline)
redis.call('DECR', timeline_count)
redis.call('ZREM', waiting, timeline)
strike_out(agenda, waiting)
end_lease(leased, tokens, timeline)
-- Last: while the timeline is known its records are counted by its schedule. Those of an add that was cut off are
-- counted nowhere.
local _, _, counted_here = unpack_schedule(known, 0)
local uncounted = math.max(0, open - counted_here)
end_count(ledger, 'dropped:adopted', { 'dropped:adopted', open + in_snapshot, 'added', uncounted,
  'open', uncounted - open, 'snapshots', -in_snapshot })
return { 'adopted', open + in_snapshot }
