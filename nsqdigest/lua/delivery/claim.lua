-- claim: takes timelines that are due, over all given routes of a partition: waiting -> leased.
--
-- KEYS  per route: waiting zset, leased zset, tokens hash, schedule hash; then the agenda zset
-- ARGV  1 now (ms, '' = Redis' clock)   2 lease (ms)   3 token, the claimer's own   4 number of budgets B
--       then B budgets: how many may be taken against each (0-500);
--       then per route the number of its budget (from 1) and its increment (ms)
-- RETURNS { now, next, route number, timeline, due, route number, timeline, due, … }
--       next: nothing of what is left is due before (ms; past where a budget or the bound on work ran out), '' when nothing waits
-- ERRORS none of its own. What it takes keeps the instant at which it was due as base and bound, for maintenance. Of the given
--        routes it puts the agenda right.
--
-- @include lib/now.lua
-- @include lib/schedule.lua

local LOOKED_AT_PER_ROUTE = 500 -- at most, and no more than the room is likely to need: what is scored anew leaves the head
local now, lease_ms, token, budget_count = now_ms(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local room = {}
for number = 1, budget_count do
  room[number] = tonumber(ARGV[4 + number])
end

local agenda, answer, next_due = KEYS[#KEYS], { now, '' }, nil
for route = 1, (#KEYS - 1) / 4 do
  local waiting, leased, tokens, schedules = unpack(KEYS, 4 * route - 3, 4 * route)
  local budget = tonumber(ARGV[3 + budget_count + 2 * route])
  local increment = tonumber(ARGV[4 + budget_count + 2 * route])
  local names = {}
  if room[budget] > 0 then
    local looked_at = math.min(LOOKED_AT_PER_ROUTE, 2 * room[budget] + 16)
    names = redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, looked_at)
  end
  if #names > 0 then
    local known = redis.call('HMGET', schedules, unpack(names))
    local taken, leases, owners, kept, later = {}, {}, {}, {}, {}
    for number = 1, #names do
      local timeline = names[number]
      local base, bound, records = now, now, 0
      if known[number] then -- without it (never, unless data was lost) it is due now
        base, bound, records = struct.unpack(SCHEDULE, known[number])
      end
      local due = due_ms(base, bound, increment, records)
      if due > now then
        later[#later + 1], later[#later + 2] = due, timeline
      elseif #taken < room[budget] then
        taken[#taken + 1] = timeline
        leases[#leases + 1], leases[#leases + 2] = now + lease_ms, timeline
        owners[#owners + 1], owners[#owners + 2] = timeline, token
        kept[#kept + 1], kept[#kept + 2] = timeline, struct.pack(SCHEDULE, due, due, records)
        answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = route, timeline, due
      end
    end
    begin_writes(agenda)
    if #taken > 0 then
      redis.call('HSET', schedules, unpack(kept))
      redis.call('ZADD', leased, unpack(leases))
      redis.call('HSET', tokens, unpack(owners))
      redis.call('ZREM', waiting, unpack(taken))
      room[budget] = room[budget] - #taken
    end
    if #later > 0 then
      redis.call('ZADD', waiting, unpack(later))
    end
  end
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
  if first[2] ~= (redis.call('ZSCORE', agenda, waiting) or nil) then
    begin_writes(agenda)
    if first[2] then
      redis.call('ZADD', agenda, first[2], waiting)
    else
      redis.call('ZREM', agenda, waiting)
    end
  end
  if first[2] and (next_due == nil or tonumber(first[2]) < next_due) then
    next_due = tonumber(first[2])
    answer[2] = first[2]
  end
end
return answer
