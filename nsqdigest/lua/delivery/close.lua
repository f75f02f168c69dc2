-- close: the digest was delivered. Its snapshot goes, its keys are remembered for a while, the timeline waits again.
--
-- KEYS  as lib/timeline_keys.lua has them
-- ARGV  1 timeline   2 token   3 id   4 base, 5 bound (ms) of the next digest   6 increment (ms)
--       7 how long to remember (ms, 0: not at all)   8 most entries of the memory
-- RETURNS { 'closed' | 'already' | 'stale' }; already: this digest was closed before
-- ERRORS none of its own.
--
-- @include lib/timeline_keys.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/memory.lua

local timeline, token, id = ARGV[1], ARGV[2], ARGV[3]

local told = redis.call('HMGET', head, 'id', 'closed')
if told[2] == id then
  return { 'already' }
end
if redis.call('HGET', tokens, timeline) ~= token or told[1] ~= id then
  return { 'stale' }
end

local total = redis.call('ZCARD', snapshot) -- not the head's: a call that was cut off may have removed it
begin_writes(agenda)
wait_again(waiting, schedules, agenda, timeline, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]),
  redis.call('ZCARD', index))
begin_count(ledger, 'delivered')
remember(memory, snapshot, tonumber(ARGV[7]), tonumber(ARGV[8]))
redis.call('UNLINK', snapshot, snapshot_values)
end_digest(head, id)
end_count(ledger, 'delivered', { 'delivered', total, 'snapshots', -total })
end_lease(leased, tokens, timeline)
return { 'closed' }
