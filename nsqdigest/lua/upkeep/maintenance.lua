-- maintenance: puts right what no other call would, route by route. Timelines whose lease ran out (their worker died or
-- hangs) wait again, due when they were due before. Instants further ahead than the policy of any file can put them (a
-- clock was once wrong) come back to the longest delay of the caller's. A census finds timelines that are known and
-- neither wait nor are leased, and lets them wait; and those whose score is later than they are due, since the
-- increment of the policy was larger when they were scored.
--
-- KEYS  per route: waiting zset, leased zset, tokens hash, schedule hash, heads hash, losses hash, ledger hash; then
--       count of timelines, agenda
-- ARGV  1 now (ms, '' = Redis' clock)   2 most timelines to work on (1-500)   3 longest lease (ms)
--       then per route: the longest delay (ms) there is   the increment (ms)   where its census goes on ('0': it begins
--       where the numbers differ, 'all': from the start)
-- RETURNS { leases that ran out, instants brought back, timelines that were nowhere, timelines that are counted but not
--           there, 1 where there was more to do than one call may, else 0, then per route that needs more: its
--           number, where its census goes on, 1 where its ledger is not exact, else 0 }
-- ERRORS none of its own.
-- EFFECT whoever had a lease that ran out is stale from here on. No record is touched, and no ledger.
--
-- @include lib/now.lua
-- @include lib/schedule.lua

local COUNTED_AS = { 'added', 'superseded', 'delivered', 'buried', 'deleted', 'dropped:adopted' }
local MARKS = {}
for number, field in ipairs(COUNTED_AS) do
  MARKS[number] = 'unfinished:' .. field
end
local FURTHEST_AHEAD = 12 * 366 * 24 * 3600 * 1000 -- the 29th of February is eight years away at times
local timeline_count, agenda = KEYS[#KEYS - 1], KEYS[#KEYS]
local now, left, lease_ms = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local ran_out, brought_back, found, there = 0, 0, 0, 0
local answer = { 0, 0, 0, 0, 0 }
begin_writes(agenda)

-- The first of a zset in a range of scores, as many as this call may still work on.
local function some_of(zset, from, to)
  if left <= 0 then
    return {}
  end
  local names = redis.call('ZRANGEBYSCORE', zset, from, to, 'LIMIT', 0, left)
  left = left - #names
  return names
end

-- leased -> waiting. What claim left as base is the instant at which the timeline was due; without it (never, unless
-- data was lost) it is due now.
local function end_leases(waiting, leased, tokens, schedules)
  local names = some_of(leased, '-inf', now)
  if #names > 0 then
    local packed, scores, first_due = redis.call('HMGET', schedules, unpack(names)), {}, math.huge
    for number = 1, #names do
      local instant = unpack_schedule(packed[number], now)
      scores[#scores + 1], scores[#scores + 2] = instant, names[number]
      first_due = math.min(first_due, instant)
    end
    redis.call('ZADD', waiting, unpack(scores))
    put_down(agenda, waiting, first_due)
    redis.call('HDEL', tokens, unpack(names))
    redis.call('ZREM', leased, unpack(names))
  end
  return #names
end

-- No instant lies FURTHEST_AHEAD unless a clock did. A nearer one stays: another file may have a rarer policy. (That a
-- clock went back is proof for bring_back.lua.)
local function bring_back(waiting, leased, schedules, longest)
  local latest_lease, latest = now + lease_ms, now + longest
  local leases = some_of(leased, '(' .. latest_lease, '+inf')
  for _, timeline in ipairs(leases) do
    redis.call('ZADD', leased, latest_lease, timeline)
  end
  local furthest = string.format('(%d', now + math.max(FURTHEST_AHEAD, longest))
  local names = some_of(waiting, furthest, '+inf')
  for _, timeline in ipairs(names) do
    local known = redis.call('HGET', schedules, timeline)
    if known then
      local base, bound, records = unpack_schedule(known, now)
      redis.call('HSET', schedules, timeline,
        struct.pack(SCHEDULE, math.min(base, latest), math.min(bound, latest), records))
    end
    redis.call('ZADD', waiting, latest, timeline)
    put_down(agenda, waiting, latest)
  end
  return #leases + #names
end

-- A page of the timelines that are known. Returns how many were nowhere, and where the next page begins.
local function look_over(waiting, leased, schedules, increment, cursor)
  local page = redis.call('HSCAN', schedules, cursor, 'COUNT', left)
  local lost = 0
  left = left - #page[2] / 2
  for place = 1, #page[2], 2 do
    local timeline, packed = page[2][place], page[2][place + 1]
    local base, bound, records = unpack_schedule(packed, now)
    local due, score = due_ms(base, bound, increment, records), redis.call('ZSCORE', waiting, timeline)
    if score and tonumber(score) > due then
      redis.call('ZADD', waiting, due, timeline)
      put_down(agenda, waiting, due)
    elseif not score and not redis.call('ZSCORE', leased, timeline) then
      redis.call('ZADD', waiting, 'NX', base, timeline)
      put_down(agenda, waiting, base)
      lost = lost + 1
    end
  end
  return lost, page[1]
end

-- Returns where the census of a route goes on.
local function look_after(route, known, cursor)
  local waiting, leased, tokens, schedules = unpack(KEYS, 7 * route - 6, 7 * route - 3)
  local longest, increment = tonumber(ARGV[1 + 3 * route]), tonumber(ARGV[2 + 3 * route])
  ran_out = ran_out + end_leases(waiting, leased, tokens, schedules)
  brought_back = brought_back + bring_back(waiting, leased, schedules, longest)
  if cursor == '0' and known ~= redis.call('ZCARD', waiting) + redis.call('ZCARD', leased) then
    cursor = 'all'
  end
  if cursor ~= '0' and left > 0 then
    local lost
    lost, cursor = look_over(waiting, leased, schedules, increment, cursor == 'all' and '0' or cursor)
    found = found + lost
  end
  return cursor
end

local function is_inexact(ledger)
  for _, unfinished in ipairs(redis.call('HMGET', ledger, unpack(MARKS))) do
    if unfinished and unfinished ~= '0' then
      return true
    end
  end
end

for route = 1, (#KEYS - 2) / 7 do
  local cursor, inexact = ARGV[3 + 3 * route], 0
  local known = redis.call('HLEN', KEYS[7 * route - 3])
  there = there + known
  if left > 0 then
    cursor = look_after(route, known, cursor)
    inexact = is_inexact(KEYS[7 * route]) and 1 or 0
  end
  if cursor ~= '0' or inexact == 1 then
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = route, cursor, inexact
  end
end
answer[1], answer[2], answer[3] = ran_out, brought_back, found
answer[5] = left <= 0 and 1 or 0
answer[4] = (tonumber(redis.call('GET', timeline_count)) or 0) - there
return answer
