-- open: begins, or takes up again, the digest of a leased timeline. A snapshot is frozen: one id, one set of records.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)   5 id for a new digest
--       6 what a digest left over does when there are newer records: 0: goes out as it was, they follow in the next one;
--         a capacity: takes them in, the newest so many, and is a new digest under the new id, of the same iteration
--         (as with 0 where that is more work than one call may do)
--       7… the earliest next digest (ms) if this one has iteration 1, 2, …; the last stands for all later ones
-- RETURNS { 'stale' }: the lease is another's
--         { 'empty' }: nothing to send; the timeline is forgotten
--         { 'burying', id, next earliest }: a bury of it was cut off, and has to be done again with this token
--         { 'opened' | 'again' | 'merged', now, id, opened, iteration, total, first, last (µs), superseded,
--           over capacity, next earliest, since, attempts, tries }
--         since, tries: of what was merged into this one too; attempts, opened: of this id. It counts no attempt: asked
--         again after a lost reply it returns the same digest with the same numbers.
-- ERRORS none of its own. A call that was cut off sent nothing, so what it had begun may become another digest.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/union.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua

local MOST_MERGED = 2000 -- records that are taken in, and that go for capacity's sake: some 10 ms of Redis
local now, timeline, token, merge_capacity = now_ms(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[6])

if redis.call('HGET', tokens, timeline) ~= token then
  return { 'stale' }
end

local told = redis.call('HMGET', head, 'id', 'total', 'iteration', 'superseded', 'capacity', 'since', 'closed', 'burying', 'next',
  'merging')
local id, iteration, superseded, over_capacity, since = told[1], tonumber(told[3] or 0), told[4] or 0, told[5] or 0, told[6]
local is_merging = told[10] -- a merge was cut off: how many records the ledger has of the snapshot
if id and told[8] == id and told[7] ~= id then
  return { 'burying', id, told[9] }
end

local newer = redis.call('ZCARD', index)
local unfinished = id and redis.call('EXISTS', snapshot) == 1
begin_writes(agenda)
if not unfinished and newer == 0 then
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('UNLINK', head, values) -- a value without a record: of an add that was cut off
  if redis.call('HDEL', schedules, timeline) == 1 then
    redis.call('DECR', timeline_count)
  end
  redis.call('ZREM', waiting, timeline) -- where a claim that was cut off left it
  strike_out(agenda, waiting)
  end_lease(leased, tokens, timeline)
  return { 'empty' }
end

redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)
redis.call('HSET', tokens, timeline, token) -- written whatever is there: what wrote nothing waits for no replica (WAIT)
local word = 'again'
local may_merge = merge_capacity > 0 and newer <= MOST_MERGED
  and redis.call('ZCARD', snapshot) <= merge_capacity + MOST_MERGED
if is_merging or (newer > 0 and (not unfinished or may_merge)) then
  begin_count(ledger, 'superseded')
  local known = redis.call('HGET', schedules, timeline)
  local base, bound, counted = now, now, 0
  if known then -- it is not where a delete was cut off
    base, bound, counted = struct.unpack(SCHEDULE, known)
  end
  local lost = redis.call('HMGET', losses, 's' .. timeline, 'c' .. timeline)
  -- What an add that was cut off had written, but not counted, is counted here.
  local uncounted = math.max(0, newer - counted)
  local met, trimmed, fewer_open, more = 0, 0, newer - uncounted, newer
  if unfinished then
    word = 'merged'
    local total = tonumber(is_merging or told[2])
    redis.call('HSET', head, 'id', ARGV[5], 'merging', total, 'opened', now, 'attempts', 0)
    unite(index, values, snapshot, snapshot_values)
    local united = redis.call('ZCARD', snapshot)
    trimmed = merge_capacity > 0 and trim(snapshot, snapshot_values, merge_capacity) or 0
    met, fewer_open, more = total + counted + uncounted - united, counted, united - trimmed - total
    redis.call('HSET', head, 'next', ARGV[math.min(6 + iteration, #ARGV)], 'superseded', superseded + met + (lost[1] or 0),
      'capacity', over_capacity + trimmed + (lost[2] or 0), described(snapshot))
    redis.call('UNLINK', index, values)
    redis.call('HDEL', head, 'merging')
  else
    word = 'opened'
    if not id then -- else an open was cut off here, and has counted
      iteration = iteration + 1
    end
    -- The id before the records: a snapshot without one would be nobody's.
    redis.call('HSET', head, 'id', ARGV[5], 'opened', now, 'iteration', iteration, 'since', now, 'attempts', 0, 'tries', 0,
      'next', ARGV[math.min(6 + iteration, #ARGV)], 'superseded', superseded + (lost[1] or 0),
      'capacity', over_capacity + (lost[2] or 0), described(index))
    move(index, snapshot)
    move(values, snapshot_values)
  end
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, 0))
  end_count(ledger, 'superseded', { 'superseded', met, 'added', uncounted, 'open', -fewer_open, 'snapshots', more,
    'dropped:capacity', trimmed })
elseif redis.call('EXISTS', snapshot_values) == 0 and take_back_values(index, values, snapshot, snapshot_values) then
  redis.call('HSET', head, 'id', ARGV[5])
end
return { word, now, unpack(redis.call('HMGET', head, 'id', 'opened', 'iteration', 'total', 'first', 'last', 'superseded',
  'capacity', 'next', 'since', 'attempts', 'tries')) }
