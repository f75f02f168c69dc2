-- finish: what became of digests, any number of a partition in any mixture, in one call:
--   close   it was delivered: its snapshot goes, its keys are remembered for a while, the timeline waits again
--   wait    it was not delivered, or not tried: the snapshot stays as it is, the timeline waits until a given instant. A
--           post is counted here, when it has ended: one that its daemon did not outlive is in no count
--   bury    it cannot be delivered: its snapshot moves to the dead store under its own id; the timeline goes on as after
--           a close
--
-- KEYS  as lib/route_keys.lua has them; then dead zset, dead details hash; then per digest to bury: dead set, dead values
-- ARGV  1 now (ms, '' = Redis' clock)   2 number of routes R   3 number of digests D
--       then per route: its increment (ms)
--       then per digest: number of its route (from 1), 'close' | 'wait' | 'bury', timeline, token, id, base, bound (ms) of
--         the next digest, and
--         close, bury: how long to remember its keys (ms, 0: not at all), most entries of the memory, and to bury: details
--           of the dead digest (opaque; else '')
--         wait: posts that ended (1, or 0), '', ''
-- RETURNS per digest 'closed' | 'waiting' | 'buried' | 'already' | 'stale' | 'damaged'
--         already: this digest was closed or buried before; damaged: a key of its own has another type, nothing changed
-- ERRORS none of its own. A key that timelines share and that has another type stops the call before its first write.
-- EFFECT each timeline waits before its digest ends, and is leased until it has: a call that was cut off leaves it in two
--        places, never in none.
--
-- @include lib/route_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/memory.lua

local ARGUMENTS_OF_DIGEST = 10
local now, route_count, digest_count = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local agenda = KEYS[KEYS_OF_ROUTE * route_count + 2]
local first_dead = KEYS_OF_ROUTE * route_count + 3 + KEYS_OF_TIMELINE * digest_count
local dead, dead_details = KEYS[first_dead], KEYS[first_dead + 1]
local answers = {}

local function routes_of_call()
  local routes, at, to_bury = {}, 4 + route_count, 0
  for number = 1, route_count do
    routes[number] = { increment = tonumber(ARGV[3 + number]), entries = {} }
  end
  for number = 1, digest_count do
    local entry = { number = number }
    local route
    route, entry.kind, entry.timeline, entry.token, entry.id = unpack(ARGV, at, at + 4)
    entry.base, entry.bound = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
    entry.index, entry.values, entry.snapshot, entry.snapshot_values, entry.memory = keys_of_timeline(route_count, number)
    if entry.kind == 'wait' then
      entry.posts = tonumber(ARGV[at + 7])
    else
      entry.remember_ms, entry.remembered, entry.details = tonumber(ARGV[at + 7]), tonumber(ARGV[at + 8]), ARGV[at + 9]
    end
    if entry.kind == 'bury' then
      entry.dead_index, entry.dead_values = unpack(KEYS, first_dead + 2 + 2 * to_bury, first_dead + 3 + 2 * to_bury)
      to_bury = to_bury + 1
    end
    local entries = routes[tonumber(route)].entries
    entries[#entries + 1] = entry
    at = at + ARGUMENTS_OF_DIGEST
  end
  return routes
end

-- Returns the answer of an entry of which nothing is to be done, or nil.
local function refusal(entry, owner)
  local is_ending = entry.kind ~= 'wait'
  if is_ending and field_of(entry.head, 'closed') == entry.id then
    return 'already'
  end
  if owner ~= entry.token or (is_ending and field_of(entry.head, 'id') ~= entry.id) then
    return 'stale'
  end
  if is_ending then
    -- Not what the digest had: a call that was cut off may have moved it.
    local total, known = redis.pcall('ZCARD', entry.snapshot), redis.pcall('ZCARD', entry.memory)
    if type(total) == 'table' or type(known) == 'table' then
      return 'damaged'
    end
    entry.total, entry.known = total, known
  end
end

-- Looks at all that the call will write, and writes nothing.
local function plan(number, route)
  local _, _, tokens, schedules, heads = keys_of_route(number)
  local names = {}
  for place, entry in ipairs(route.entries) do
    names[place] = entry.timeline
  end
  local owners, known_heads = redis.call('HMGET', tokens, unpack(names)), redis.call('HMGET', heads, unpack(names))
  local packed = redis.call('HMGET', schedules, unpack(names))
  route.accepted = {}
  for place, entry in ipairs(route.entries) do
    entry.head = known_heads[place]
    entry.records = packed[place] and select(3, struct.unpack(SCHEDULE, packed[place])) or 0
    local answer = refusal(entry, owners[place])
    answers[entry.number] = answer
    if not answer then
      route.accepted[#route.accepted + 1] = entry
    end
  end
end

-- All of a route: where they wait, and until when.
local function wait_again_all(number, route)
  local waiting, _, _, schedules = keys_of_route(number)
  local schedules_set, scores, first_due = {}, {}, math.huge
  for place, entry in ipairs(route.accepted) do
    local due = due_ms(entry.base, entry.bound, route.increment, entry.records)
    schedules_set[2 * place - 1] = entry.timeline
    schedules_set[2 * place] = struct.pack(SCHEDULE, entry.base, entry.bound, entry.records)
    scores[2 * place - 1], scores[2 * place] = due, entry.timeline
    first_due = math.min(first_due, due)
  end
  redis.call('HSET', schedules, unpack(schedules_set))
  redis.call('ZADD', waiting, unpack(scores))
  put_down(agenda, waiting, first_due)
end

local function close(entry)
  remember(entry.memory, entry.snapshot, entry.total, true, entry.known, entry.remember_ms, entry.remembered)
  redis.call('UNLINK', entry.snapshot, entry.snapshot_values)
end

-- A redelivered event is in the dead digest already: shown in the next one, too, it would come twice with a revival.
local function bury(entry)
  if redis.call('HEXISTS', dead_details, entry.id) == 0 then
    redis.call('HSET', dead_details, entry.id, entry.details)
  end
  redis.call('ZADD', dead, now, entry.id)
  remember(entry.memory, entry.snapshot, entry.total, false, entry.known, entry.remember_ms, entry.remembered)
  move(entry.snapshot, entry.dead_index)
  move(entry.snapshot_values, entry.dead_values)
end

local function set_heads(heads, entries, changed)
  local pairs_to_set = {}
  for _, entry in ipairs(entries) do
    local head = changed(entry)
    if head then
      pairs_to_set[#pairs_to_set + 1], pairs_to_set[#pairs_to_set + 2] = entry.timeline, head
    end
  end
  if #pairs_to_set > 0 then
    redis.call('HSET', heads, unpack(pairs_to_set))
  end
end

-- The head of an entry whose digest is on its way to the dead store.
local function marked_as_burying(entry)
  return entry.kind == 'bury' and with_field(entry.head, 'burying', entry.id) or nil
end

local function head_afterwards(entry)
  if entry.kind ~= 'wait' then
    return ended(entry.head, entry.id)
  end
  if entry.posts > 0 and field_of(entry.head, 'id') then
    local head = with_number(entry.head, 'attempts', field_of(entry.head, 'attempts') + entry.posts)
    return with_number(head, 'tries', field_of(head, 'tries') + entry.posts)
  end
end

local WORDS = { close = 'closed', wait = 'waiting', bury = 'buried' }

local function finish(number, route)
  local _, leased, tokens, _, heads, _, ledger = keys_of_route(number)
  wait_again_all(number, route)
  local ended_records, names = { close = 0, bury = 0 }, {}
  local is_there = {}
  for place, entry in ipairs(route.accepted) do
    names[place], is_there[entry.kind] = entry.timeline, true
    if entry.kind ~= 'wait' then
      ended_records[entry.kind] = ended_records[entry.kind] + entry.total
    end
    answers[entry.number] = WORDS[entry.kind]
  end
  if is_there.close then
    begin_count(ledger, 'delivered')
  end
  if is_there.bury then
    begin_count(ledger, 'buried')
    set_heads(heads, route.accepted, marked_as_burying)
  end
  for _, entry in ipairs(route.accepted) do
    if entry.kind == 'close' then
      close(entry)
    elseif entry.kind == 'bury' then
      bury(entry)
    end
  end
  set_heads(heads, route.accepted, head_afterwards)
  if is_there.close then
    end_count(ledger, 'delivered', { 'delivered', ended_records.close, 'snapshots', -ended_records.close })
  end
  if is_there.bury then
    end_count(ledger, 'buried', { 'buried', ended_records.bury, 'snapshots', -ended_records.bury })
  end
  redis.call('HDEL', tokens, unpack(names))
  redis.call('ZREM', leased, unpack(names))
end

local routes = routes_of_call()
for number, route in ipairs(routes) do
  if #route.entries > 0 then
    plan(number, route)
  end
end
look_at_shared(routes, agenda)
redis.call('ZCARD', dead)
redis.call('HLEN', dead_details)
begin_writes(agenda)
for number, route in ipairs(routes) do
  if #route.entries > 0 and #route.accepted > 0 then
    finish(number, route)
  end
end
return answers
