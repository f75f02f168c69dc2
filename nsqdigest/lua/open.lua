-- open: begins, or takes up again, the digest of a leased timeline. A snapshot is frozen: one id, one set of records.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)   5 id for a new digest
--       6 what a digest left over does when there are newer records: 0: goes out as it was, they follow in the next one;
--         a capacity: takes them in, the newest so many, and is a new digest under the new id, of the same iteration
--       7… the earliest next digest (ms) if this one has iteration 1, 2, …; the last stands for all later ones
-- RETURNS { 'stale' }: the lease is another's
--         { 'empty' }: nothing to send; the timeline is forgotten
--         { 'opened' | 'again' | 'merged', now, id, opened, iteration, total, first, last (µs), superseded,
--           over capacity, next earliest, since, attempts, tries }
--         since, tries: of what was merged into this one too; attempts, opened: of this id. It counts no attempt: asked
--         again after a lost reply it returns the same digest with the same numbers.
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/bytes.lua
-- @include lib/records.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua

local now, timeline, token, merge_capacity = now_ms(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[6])

if redis.call('HGET', tokens, timeline) ~= token then
  return { 'stale' }
end

local newer = redis.call('ZCARD', index)
local unfinished = redis.call('HEXISTS', head, 'id') == 1
redis.call('ZREM', leased, timeline)
if not unfinished and newer == 0 then
  redis.call('HDEL', tokens, timeline)
  redis.call('HDEL', schedules, timeline)
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('UNLINK', head)
  redis.call('DECR', timeline_count)
  return { 'empty' }
end

redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)
redis.call('HSET', tokens, timeline, token) -- written whatever is there: what wrote nothing waits for no replica (WAIT)
local word = 'again'
if newer > 0 and (not unfinished or merge_capacity > 0) then
  local superseded, over_capacity = 0, 0
  if unfinished then
    word = 'merged'
    superseded = unite(index, values, snapshot, snapshot_values)
    over_capacity = trim(snapshot, snapshot_values, merge_capacity)
  else
    word = 'opened'
    move(index, snapshot)
    move(values, snapshot_values)
    redis.call('HINCRBY', head, 'iteration', 1)
    redis.call('HSET', head, 'since', now, 'tries', 0)
  end
  local lost = redis.call('HMGET', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('HINCRBY', head, 'superseded', superseded + (lost[1] or 0))
  redis.call('HINCRBY', head, 'capacity', over_capacity + (lost[2] or 0))
  local next_earliest = ARGV[math.min(6 + redis.call('HGET', head, 'iteration'), #ARGV)]
  redis.call('HSET', head, 'id', ARGV[5], 'opened', now, 'next', next_earliest, 'attempts', 0)
  describe(head, snapshot)
  local base, bound = struct.unpack(SCHEDULE, redis.call('HGET', schedules, timeline))
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, 0))
  count(ledger, 'open', -newer)
  count(ledger, 'snapshots', newer - superseded - over_capacity)
  count(ledger, 'superseded', superseded)
  count(ledger, 'dropped:capacity', over_capacity)
end
return { word, now, unpack(redis.call('HMGET', head, 'id', 'opened', 'iteration', 'total', 'first', 'last', 'superseded',
  'capacity', 'next', 'since', 'attempts', 'tries')) }
