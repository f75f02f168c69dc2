-- mend: recounts a route whose ledger is not exact, since calls were cut off before they counted: its open sets, its
-- snapshots, and sets the ledger to what is there. Whole and at one instant, so it takes all timelines of the route in
-- one call.
--
-- KEYS  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 heads hash   6 losses hash   7 ledger hash
--       8 count of timelines   9 agenda zset, then per timeline: set zset, digest zset
-- ARGV  1 records in dead digests of the route, counted by the caller   2 'buried' of the ledger when that began
--       3… the timelines, in the order of their keys: all that the schedule hash has
-- RETURNS { 'mended', difference }: so many records more (or fewer) are there than the ledger had. More: they are
--         counted as added. Fewer: their end was not counted; they are counted as what the calls that were cut off
--         would have counted them as, and as dropped:unknown where these were of several kinds
--         { 'changed' }: timelines came or went, or were buried, since the caller looked
-- ERRORS none of its own.
-- EFFECT the ledger, and the counts in schedules and in heads of merges that were cut off. No record is touched.
--
-- @include lib/schedule.lua
-- @include lib/head.lua

local ENDS = { 'delivered', 'deleted', 'dropped:adopted', 'superseded' }
local FIXED_KEYS = 9
local _, _, _, schedules, heads, _, ledger, _, agenda = unpack(KEYS, 1, FIXED_KEYS)
if redis.call('HLEN', schedules) ~= #ARGV - 2 or (redis.call('HGET', ledger, 'buried') or '0') ~= ARGV[2] then
  return { 'changed' }
end

begin_writes(agenda)
local open, in_snapshots = 0, 0
for number = 3, #ARGV do
  local place = FIXED_KEYS + 2 * (number - 2)
  local timeline, index, snapshot = ARGV[number], unpack(KEYS, place - 1, place)
  local records, known = redis.call('ZCARD', index), redis.call('HGET', schedules, timeline)
  if not known then
    return { 'changed' }
  end
  local base, bound, counted = unpack_schedule(known, 0)
  if counted ~= records then
    redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, records))
  end
  local total = redis.call('ZCARD', snapshot)
  local head = redis.call('HGET', heads, timeline)
  if field_of(head, 'merging') then
    redis.call('HSET', heads, timeline, with_field(head, 'merging', total))
  end
  open, in_snapshots = open + records, in_snapshots + total
end

local had = redis.call('HMGET', ledger, 'open', 'snapshots', 'buried', 'added')
local difference = open + in_snapshots + ARGV[1] - (had[1] or 0) - (had[2] or 0) - (had[3] or 0)
local changes =
  { 'open', open, 'snapshots', in_snapshots, 'buried', ARGV[1], 'unfinished:added', 0, 'unfinished:buried', 0 }
local possible = {}
for _, field in ipairs(ENDS) do
  local mark = 'unfinished:' .. field
  if (redis.call('HGET', ledger, mark) or '0') ~= '0' then
    possible[#possible + 1] = field
  end
  changes[#changes + 1], changes[#changes + 2] = mark, 0
end
local counted_as, by = 'added', difference
if difference < 0 then
  counted_as, by = #possible == 1 and possible[1] or 'dropped:unknown', -difference
end
local counted = (redis.call('HGET', ledger, counted_as) or 0) + by
changes[#changes + 1], changes[#changes + 2] = counted_as, string.format('%d', counted)
redis.call('HSET', ledger, unpack(changes))
return { 'mended', difference }
