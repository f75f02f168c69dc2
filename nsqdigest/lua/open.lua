-- open: begins, or takes up again, the digest of a leased timeline. A snapshot is frozen: one id, one set of records.
--
-- KEYS  1 leased zset   2 tokens hash   3 schedule hash   4 losses hash   5 ledger hash   6 count of timelines
--       7 head hash     8 index zset    9 value hash   10 snapshot index   11 snapshot values
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 token   4 lease (ms)   5 id for a new digest
--       6… the earliest next digest (ms) if this one has iteration 1, 2, …; the last stands for all later ones
-- RETURNS { 'stale' }: the lease is another's
--         { 'empty' }: nothing to send; the timeline is forgotten
--         { 'opened' | 'again', now, attempt, id, opened, iteration, total, first, last (µs), superseded, over capacity,
--           next earliest }
-- ERRORS none of its own.
--
-- @include lib/now.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua

local leased, tokens, schedules, losses, ledger, timeline_count = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local head, index, values, snapshot, snapshot_values = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local now, timeline, token = now_ms(ARGV[1]), ARGV[2], ARGV[3]

if redis.call('HGET', tokens, timeline) ~= token then
  return { 'stale' }
end

local total = redis.call('ZCARD', index)
local unfinished = redis.call('HEXISTS', head, 'id') == 1
if not unfinished and total == 0 then
  redis.call('ZREM', leased, timeline)
  redis.call('HDEL', tokens, timeline)
  redis.call('HDEL', schedules, timeline)
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('UNLINK', head)
  redis.call('DECR', timeline_count)
  return { 'empty' }
end

redis.call('ZREM', leased, timeline)
redis.call('ZADD', leased, now + tonumber(ARGV[4]), timeline)
if not unfinished then
  local lost = redis.call('HMGET', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('HDEL', losses, 's' .. timeline, 'c' .. timeline)
  redis.call('UNLINK', snapshot, snapshot_values)
  redis.call('RENAME', index, snapshot)
  redis.call('RENAME', values, snapshot_values)
  local iteration = redis.call('HINCRBY', head, 'iteration', 1)
  -- Scores are minus the timestamps: the newest stands first.
  local newest = redis.call('ZRANGE', snapshot, 0, 0, 'WITHSCORES')
  local oldest = redis.call('ZRANGE', snapshot, -1, -1, 'WITHSCORES')
  redis.call('HSET', head, 'id', ARGV[5], 'opened', now, 'total', total, 'first', -oldest[2], 'last', -newest[2],
    'superseded', lost[1] or 0, 'capacity', lost[2] or 0, 'next', ARGV[math.min(5 + iteration, #ARGV)], 'attempts', 0)
  local base, bound = struct.unpack(SCHEDULE, redis.call('HGET', schedules, timeline))
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, 0))
  count(ledger, 'open', -total)
  count(ledger, 'snapshots', total)
end
local attempt = redis.call('HINCRBY', head, 'attempts', 1)
local told = redis.call('HMGET', head, 'id', 'opened', 'iteration', 'total', 'first', 'last', 'superseded', 'capacity', 'next')
return { unfinished and 'again' or 'opened', now, attempt, unpack(told) }
