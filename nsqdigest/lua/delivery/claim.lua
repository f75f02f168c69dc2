-- claim: takes timelines that are due, over all given routes of a partition: waiting -> leased.
--
-- KEYS  per route: waiting zset, leased zset, tokens hash, schedule hash; then the agenda zset, exempt zset
-- ARGV  1 now (ms, '' = Redis' clock)   2 lease (ms)   3 token, the claimer's own
--       4 number of budgets B; 0: the answer to a claim with this token was lost: returns what that took, and takes
--       nothing
--       then B budgets: how many may be taken against each (0-500);
--       then per route the number of its budget (from 1) and its increment (ms); a number below 0: the route has
--         quiet hours now, and only what is exempt from its policy is taken: scored EXEMPT at most, or a retry that is
--         due and that the exempt zset names (lib/exempt.lua)
-- RETURNS { now, next, route number, timeline, due, route number, timeline, due, … }
--       next: earliest instant (ms) at which a timeline that still waits can be due; in the past if a budget or the
--       bound on work cut this claim short; '' when nothing waits, or all that waits does so for quiet hours
--       due: of what is exempt EXEMPT
-- ERRORS none of its own.
-- EFFECT sets base = bound = due for each claimed timeline, where maintenance returns it to (what is so already is not
--        written again); rewrites these routes' agenda entries.
--
-- @include lib/now.lua
-- @include lib/schedule.lua
-- @include lib/exempt.lua

local LOOKED_AT_PER_ROUTE, LOOKED_AT_PER_CALL = 500, 5000 -- at most
local LOOKED_AT_BEYOND_ROOM = 16 -- at a time: some of the first may be due later by now
local LEASED_AT_MOST = 5000 -- where more are leased than claims take, a lost claim is left to maintenance
local now, token, budget_count = now_ms(ARGV[1]), ARGV[3], tonumber(ARGV[4])
-- As text: Redis formats a number for every call it is given to, and with all digits that a double may have.
local lease_until = string.format('%d', now + ARGV[2])
local room = {}
for number = 1, budget_count do
  room[number] = tonumber(ARGV[4 + number])
end
local agenda, exempt, answer, answered = KEYS[#KEYS - 1], KEYS[#KEYS], { now, '' }, 2
local left_of_call = LOOKED_AT_PER_CALL
local exempt_of_routes -- retries by route, read when one is asked for

local function keys_of_route(number)
  return unpack(KEYS, 4 * number - 3, 4 * number)
end

local function put_into_answer(number, timeline, due)
  answer[answered + 1], answer[answered + 2], answer[answered + 3] = number, timeline, due
  answered = answered + 3
end

-- What the claim with this token took, under a new lease.
local function take_again(number)
  local _, leased, tokens, schedules = keys_of_route(number)
  local owners = redis.call('HLEN', tokens) <= LEASED_AT_MOST and redis.call('HGETALL', tokens) or {}
  for place = 1, #owners, 2 do
    if owners[place + 1] == token then
      begin_writes(agenda)
      redis.call('ZADD', leased, lease_until, owners[place])
      put_into_answer(number, owners[place], (unpack_schedule(redis.call('HGET', schedules, owners[place]), now)))
    end
  end
end

local function write(number, taken, leases, owners, kept, later)
  local waiting, leased, tokens, schedules = keys_of_route(number)
  begin_writes(agenda)
  if #taken > 0 then
    if #kept > 0 then
      redis.call('HSET', schedules, unpack(kept))
    end
    redis.call('ZADD', leased, unpack(leases))
    redis.call('HSET', tokens, unpack(owners))
    redis.call('ZREM', waiting, unpack(taken))
  end
  if #later > 0 then
    redis.call('ZADD', waiting, unpack(later))
  end
end

-- Takes of the first that wait as many as there is room for, and scores anew what is due later: neither waits first any
-- more. `latest`: the last instant that is due. Returns how many were there to be looked at, and how many it took.
local function take_first(number, most, places, increment, latest)
  local waiting, _, _, schedules = keys_of_route(number)
  local names = redis.call('ZRANGEBYSCORE', waiting, '-inf', latest, 'LIMIT', 0, most)
  if #names == 0 then
    return 0, 0
  end
  local known = redis.call('HMGET', schedules, unpack(names))
  local taken, leases, owners, kept, later, count = {}, {}, {}, {}, {}, 0
  local packed, due, schedule -- those of the timeline before: many of a call have the same
  for place = 1, #names do
    local timeline = names[place]
    if known[place] ~= packed or place == 1 then
      packed = known[place]
      local base, bound, records = unpack_schedule(packed, now)
      due = due_ms(base, bound, increment, records)
      schedule = struct.pack(SCHEDULE, due, due, records)
    end
    if due > latest then
      later[#later + 1], later[#later + 2] = string.format('%d', due), timeline
    elseif count < places then
      count = count + 1
      taken[count] = timeline
      leases[2 * count - 1], leases[2 * count] = lease_until, timeline
      owners[2 * count - 1], owners[2 * count] = timeline, token
      if schedule ~= packed then
        kept[#kept + 1], kept[#kept + 2] = timeline, schedule
      end
      put_into_answer(number, timeline, due)
    end
  end
  write(number, taken, leases, owners, kept, later)
  return #names, count
end

-- Returns the budget of a route, and the last instant that is due of it.
local function budget_of(number)
  local budget = tonumber(ARGV[3 + budget_count + 2 * number])
  if budget < 0 then
    return -budget, EXEMPT
  end
  return budget, now
end

-- Retries of a route that has quiet hours now: those that are exempt from them, and due. Returns when the first of the
-- others is due.
local function take_exempt(number, budget)
  local waiting, leased, tokens, schedules = keys_of_route(number)
  local route, next_due, gone = route_of(waiting), nil, {}
  exempt_of_routes = exempt_of_routes or exempt_retries(exempt, LOOKED_AT_PER_ROUTE)
  for _, entry in ipairs(exempt_of_routes[route] or {}) do
    local timeline = entry.timeline
    if not is_exempt_retry(entry.due, waiting, schedules, timeline) then
      gone[#gone + 1] = entry.name
    elseif entry.due > now then
      next_due = math.min(next_due or entry.due, entry.due)
    elseif room[budget] > 0 then
      local _, _, records = unpack_schedule(redis.call('HGET', schedules, timeline), now)
      begin_writes(agenda)
      redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, EXEMPT, EXEMPT, records))
      redis.call('ZADD', leased, lease_until, timeline)
      redis.call('HSET', tokens, timeline, token)
      redis.call('ZREM', waiting, timeline)
      put_into_answer(number, timeline, EXEMPT)
      room[budget], gone[#gone + 1] = room[budget] - 1, entry.name
    else
      next_due = math.min(next_due or entry.due, entry.due)
    end
  end
  if #gone > 0 then
    begin_writes(agenda)
    redis.call('ZREM', exempt, unpack(gone))
  end
  return next_due
end

local function take(number)
  local budget, latest = budget_of(number)
  local increment = tonumber(ARGV[4 + budget_count + 2 * number])
  local left = math.min(LOOKED_AT_PER_ROUTE, left_of_call)
  while room[budget] > 0 and left > 0 do
    local most = math.min(room[budget] + LOOKED_AT_BEYOND_ROOM, left)
    local looked_at, taken = take_first(number, most, room[budget], increment, latest)
    room[budget], left, left_of_call = room[budget] - taken, left - looked_at, left_of_call - looked_at
    if looked_at < most then
      return
    end
  end
end

-- Returns the score of the first that waits.
local function put_agenda_right(number)
  local waiting = keys_of_route(number)
  local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  if first ~= (redis.call('ZSCORE', agenda, waiting) or nil) then
    begin_writes(agenda)
    if first then
      redis.call('ZADD', agenda, first, waiting)
    else
      redis.call('ZREM', agenda, waiting)
    end
  end
  return first
end

local function note_next(due)
  if due and (answer[2] == '' or tonumber(due) < tonumber(answer[2])) then
    answer[2] = due
  end
end

for number = 1, (#KEYS - 2) / 4 do
  if budget_count == 0 then
    take_again(number)
  else
    take(number)
    local budget, latest = budget_of(number)
    local next_exempt = latest == EXEMPT and take_exempt(number, budget)
    local first = put_agenda_right(number)
    local is_held_back = latest == EXEMPT and first and tonumber(first) > EXEMPT
    note_next(not is_held_back and first)
    note_next(next_exempt and string.format('%d', next_exempt))
  end
end
return answer
