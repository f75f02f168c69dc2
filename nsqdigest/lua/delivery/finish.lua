-- finish: what became of digests, any number of a partition in any mixture, in one call:
--   close   it was delivered: its snapshot goes, its keys are remembered for a while, the timeline waits again
--   wait    it was not delivered, or not tried: the snapshot stays as it is, the timeline waits until a given instant.
--           A post is counted here, when it has ended: one that its daemon did not outlive is in no count
--   retry   like wait, of a route with quiet hours: where it was exempt from them, or an urgent record waits behind it,
--           the next attempt is exempt, too
--   bury    it cannot be delivered: its snapshot moves to the dead store under its own id; the timeline goes on as
--           after a close
--
-- KEYS  as lib/route_keys.lua has them, of each timeline: digest, digest values, shown zset; then dead zset, dead
--       details hash, exempt zset; then per digest to bury: dead set, dead values
-- ARGV  1 now (ms, '' = Redis' clock)   2 number of routes R   3 number of digests D
--       then per route: length of what stands before a timeline's name in the key of its digest; its increment (ms);
--         how long to remember the keys of what ended (ms, 0: not at all); most entries of that memory
--       then run after run of digests of one claim and route that end alike: number of the route (from 1), 'close' |
--         'wait' | 'retry' | 'bury', token, posts that ended (of 'wait' and 'retry': 1 or 0), base and bound (ms) of
--         the next digests, number of digests; per digest: id
--       then per digest to bury: its details (opaque)
-- RETURNS per digest 'closed' | 'waiting' | 'buried' | 'already' | 'stale' | 'damaged' | 'later'
--         already: this digest was closed or buried before; damaged: a key of its own has another type, nothing
--         changed; later: the digests before it were work enough for one call, nothing changed, ask again.
--         Behind 'closed' and 'buried', after a blank: how many keys the memory let go for want of room, if any
-- ERRORS none of its own. A key that timelines share and that has another type stops the call before its first write.
-- EFFECT after a close or a bury base = bound = EXEMPT, and not those of the call, where the head says that an urgent
--        record came meanwhile (add). Each timeline waits before its digest ends, and is leased until it has: a call
--        that was cut off leaves it in two places, never in none.
--
-- @include lib/route_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/memory.lua
-- @include lib/exempt.lua

local MOST_REMEMBERED_PER_CALL = 5000 -- keys, of all digests of a call but the first that has any: below 15 ms
local KEYS_OF_TIMELINE, ARGUMENTS_OF_ROUTE, ARGUMENTS_OF_RUN = 3, 4, 7
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local now, route_count, digest_count = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first_own = KEYS_OF_ROUTE * route_count + 3 -- key of a timeline
local agenda = KEYS[first_own - 1]
local first_dead = first_own + KEYS_OF_TIMELINE * digest_count
local dead, dead_details, exempt = unpack(KEYS, first_dead, first_dead + 2)
local copied = 0
local answers, has_burials = {}, false
local WORDS = { close = 'closed', wait = 'waiting', retry = 'waiting', bury = 'buried' }

local function routes_of_call()
  local routes, number, to_bury = {}, 0, {}
  for route_number = 1, route_count do
    local at = 4 + ARGUMENTS_OF_ROUTE * (route_number - 1)
    routes[route_number] = {
      name_from = ARGV[at] + 1, increment = tonumber(ARGV[at + 1]), remember_ms = ARGV[at + 2],
      remembered = tonumber(ARGV[at + 3]), entries = {}, names = {}, memories = {}, retried = {},
    }
  end
  local at = 4 + ARGUMENTS_OF_ROUTE * route_count
  while number < digest_count do
    local route_number, kind, token, posts, base, bound, count = unpack(ARGV, at, at + ARGUMENTS_OF_RUN - 1)
    local route = routes[tonumber(route_number)]
    -- base_text: Redis formats a number for every call it is given to.
    local run = {
      kind = kind == 'retry' and 'wait' or kind, is_retry = kind == 'retry', token = token, posts = tonumber(posts),
      base = tonumber(base), bound = tonumber(bound), base_text = base, is_ending = kind == 'close' or kind == 'bury',
    }
    at = at + ARGUMENTS_OF_RUN
    local entries, names, memories, name_from = route.entries, route.names, route.memories, route.name_from
    local place, is_ending = #entries, run.is_ending
    for id_at = at, at + count - 1 do
      local own = first_own + KEYS_OF_TIMELINE * number
      local timeline = substring(KEYS[own], name_from)
      number, place = number + 1, place + 1
      -- With all fields that a usual one has, which are no more than eight: a table that grows is made anew, and has
      -- room for twice as many.
      local entry = {
        number = number, own = own, run = run, timeline = timeline, id = ARGV[id_at], head = '', packed = false,
        total = 0,
      }
      entries[place], names[place] = entry, timeline
      if is_ending then
        memories[#memories + 1] = KEYS[own + 2]
      end
      if kind == 'bury' then
        to_bury[#to_bury + 1] = entry
      end
    end
    if kind == 'retry' then
      route.has_retries = true
    end
    has_burials = has_burials or kind == 'bury'
    at = at + count
  end
  for place, entry in ipairs(to_bury) do
    entry.details = ARGV[at + place - 1]
    entry.dead_index, entry.dead_values = unpack(KEYS, first_dead + 2 * place + 1, first_dead + 2 * place + 2)
  end
  return routes
end

-- Returns digest, digest values and memory of an entry.
local function keys_of(entry)
  return unpack(KEYS, entry.own, entry.own + KEYS_OF_TIMELINE - 1)
end

-- Whether the id of an entry is that of the digest under way, by the one look that tells it of a usual head: what is of
-- the timeline stands before ' id=', so an id that ended would be found there.
local function is_under_way(head, id)
  local at = find(head, id, 1, true)
  return at and at > 4 and substring(head, at - 4, at - 1) == ' id=' and byte(head, at + #id) == BLANK
end

-- Decides what becomes of an entry that is to be buried, if an earlier call began that and no details are kept. While
-- its values are here none of it has moved: without details of this call it goes on as it was. If they are not, it was
-- dropped from the dead store in between, and what is left of it goes.
local function look_at_burial(entry)
  local id = entry.id
  entry.has_details = call('HEXISTS', dead_details, id) == 1
  local is_begun = entry.details == '' or field_of(entry.head, 'burying') == id
  if not entry.has_details and is_begun then
    if entry.total == 0 or call('EXISTS', KEYS[entry.own + 1]) == 0 then
      entry.is_dropped = true
    elseif entry.details == '' then
      entry.goes_on = true
      entry.run = { kind = 'wait', posts = 0, base = now, bound = now, base_text = format('%d', now) }
    end
  end
end

-- Returns the answer of an entry of which nothing is to be done, or nil. Counts the records of one that ends.
local function refusal(entry, owner, is_remembered)
  local head, id, own, is_ending = entry.head, entry.id, entry.own, entry.run.is_ending
  local is_other = is_ending and not is_under_way(head, id)
  if is_other and has_field(of_timeline(head), ' closed=', id) then
    return 'already'
  end
  if owner ~= entry.run.token or (is_other and not has_field(head, ' id=', id)) then
    return 'stale'
  end
  if is_ending then
    -- Not what the digest had: a call that was cut off may have moved it.
    local total, known = redis.pcall('ZCARD', KEYS[own]), is_remembered and redis.pcall('ZCARD', KEYS[own + 2]) or 0
    if type(total) == 'table' or type(known) == 'table' then
      return 'damaged'
    end
    entry.total = total
    if known > 0 then
      entry.known = known
    end
    if entry.run.kind == 'bury' then
      look_at_burial(entry)
    end
  end
end

-- Whether an end has to wait for another call. Counts the keys that it copies into the memory; a snapshot that becomes
-- the memory costs nothing.
local function is_too_much(entry, route)
  local run, total = entry.run, entry.total
  if not run.is_ending or route.remember_ms == '0' then
    return false
  end
  local work = math.min(total, route.remembered, MOST_OF_A_DIGEST)
  if run.kind == 'close' and not entry.known and becomes_memory(total, route.remembered) then
    return false
  end
  if copied > 0 and copied + work > MOST_REMEMBERED_PER_CALL then
    return true
  end
  copied = copied + work
  return false
end

-- Looks at all that the call will write, and writes nothing. Finds what is to be done: of all accepted, and of those
-- that are closed and buried.
local function plan(number, route)
  local _, _, tokens, schedules, heads = keys_of_route(number)
  local entries, names = route.entries, route.names
  local owners, known_heads = call('HMGET', tokens, unpack(names)), call('HMGET', heads, unpack(names))
  local packed = call('HMGET', schedules, unpack(names))
  local is_remembered = #route.memories > 0 and call('EXISTS', unpack(route.memories)) > 0
  local accepted, of_kind = {}, { close = {}, bury = {}, wait = {} }
  for place = 1, #entries do
    local entry = entries[place]
    entry.head, entry.packed = known_heads[place] or '', packed[place]
    local answer = refusal(entry, owners[place], is_remembered)
    if not answer and is_too_much(entry, route) then
      answer = 'later'
    end
    local kind = entry.run.kind
    answers[entry.number] = answer or WORDS[kind]
    if not answer then
      local alike = of_kind[kind]
      accepted[#accepted + 1], alike[#alike + 1] = entry, entry
      if kind ~= 'wait' and not find(entry.head, ' tries=0', 1, true) then
        route.retried[#route.retried + 1] = entry
      end
    end
  end
  route.accepted, route.closed, route.buried, route.waiting = accepted, of_kind.close, of_kind.bury, of_kind.wait
end

-- All of a route: where they wait, and until when.
local function wait_again_all(number, route)
  local waiting, _, _, schedules = keys_of_route(number)
  local schedules_set, scores, first_due, accepted = {}, {}, math.huge, route.accepted
  local run, packed, is_urgent, schedule, score -- those of the entry before: most of a call have the same
  for place = 1, #accepted do
    local entry = accepted[place]
    local came_urgent = entry.run.kind ~= 'wait' and find(entry.head, ' urgent=', 1, true) ~= nil
    if entry.run ~= run or entry.packed ~= packed or came_urgent ~= is_urgent then
      run, packed, is_urgent = entry.run, entry.packed, came_urgent
      local base, bound, _, _, records = run.base, run.bound, unpack_schedule(packed, now)
      if is_urgent then
        base, bound = EXEMPT, EXEMPT
      end
      schedule = struct.pack(SCHEDULE, base, bound, records)
      local due = due_ms(base, bound, route.increment, records)
      score = due == run.base and run.base_text or format('%d', due)
      first_due = math.min(first_due, due)
    end
    schedules_set[2 * place - 1], schedules_set[2 * place] = entry.timeline, schedule
    scores[2 * place - 1], scores[2 * place] = score, entry.timeline
  end
  call('HSET', schedules, unpack(schedules_set))
  call('ZADD', waiting, unpack(scores))
  put_down(agenda, waiting, first_due)
end

-- Of a revived digest its first end has remembered the keys. Returns whether the snapshot became the memory.
local function remember_keys(entry, route, is_over)
  if byte(entry.timeline) == REVIVED then
    return false
  end
  local own, known = entry.own, entry.known or 0
  local became_it, forgotten =
    remember(KEYS[own + 2], KEYS[own], entry.total, is_over, known, route.remember_ms, route.remembered)
  if forgotten > 0 then
    answers[entry.number] = answers[entry.number] .. format(' %d', forgotten)
  end
  return became_it
end

local function close(entries, route)
  local gone, count = {}, 0
  for place = 1, #entries do
    local entry = entries[place]
    count = count + 1
    gone[count] = KEYS[entry.own + 1]
    if not remember_keys(entry, route, true) then
      count = count + 1
      gone[count] = KEYS[entry.own]
    end
  end
  call('UNLINK', unpack(gone))
end

-- A redelivered event is in the dead digest already: shown in the next one, too, it would come twice with a revival.
-- Its head says so already. It is listed before its details are kept: no details belong to no digest, wherever a call
-- is cut off.
local function bury(entry, route)
  call('ZADD', dead, now, entry.id)
  if not entry.has_details then
    call('HSET', dead_details, entry.id, entry.details)
  end
  remember_keys(entry, route, false)
  local snapshot, snapshot_values = keys_of(entry)
  move(snapshot_values, entry.dead_values) -- before the index: what an operator finds dead is whole
  move(snapshot, entry.dead_index)
end

local function drop(entry, route)
  remember_keys(entry, route, false)
  local snapshot, snapshot_values = keys_of(entry)
  call('UNLINK', snapshot, snapshot_values)
end

local function set_heads(heads, entries, changed)
  local pairs_to_set, count = {}, 0
  for place = 1, #entries do
    local head = changed(entries[place])
    if head then
      pairs_to_set[count + 1], pairs_to_set[count + 2] = entries[place].timeline, head
      count = count + 2
    end
  end
  if #pairs_to_set > 0 then
    call('HSET', heads, unpack(pairs_to_set))
  end
end

-- The head of an entry whose digest is on its way to the dead store.
local function marked_as_burying(entry)
  return with_field(entry.head, 'burying', entry.id)
end

local function head_afterwards(entry)
  if entry.run.is_ending then
    return ended(entry.head, entry.id)
  end
  if entry.goes_on then
    return (string.gsub(entry.head, ' burying=%S+', ''))
  end
  local posts = entry.run.posts
  if posts > 0 and field_of(entry.head, 'id') then
    local head = with_number(entry.head, 'attempts', field_of(entry.head, 'attempts') + posts)
    return with_number(head, 'tries', field_of(head, 'tries') + posts)
  end
end

local function records_of(entries)
  local records = 0
  for place = 1, #entries do
    records = records + entries[place].total
  end
  return records
end

-- Of what has ended no attempt is exempt from quiet hours any more: many would hide those of other routes.
local function end_exempt_retries(number, route)
  local waiting, names = keys_of_route(number), {}
  for place, entry in ipairs(route.retried) do
    names[place] = route_of(waiting) .. ':' .. entry.timeline
  end
  if #names > 0 and is_usable(exempt) then
    call('ZREM', exempt, unpack(names))
  end
end

-- Those of a route with quiet hours whose next attempt is exempt from these.
local function exempt_retries_of(number, route)
  local waiting = keys_of_route(number)
  for _, entry in ipairs(is_usable(exempt) and route.accepted or {}) do
    if entry.run.is_retry and entry.run.base > EXEMPT then
      local name, base = route_of(waiting), (unpack_schedule(entry.packed, now))
      if base == EXEMPT or find(entry.head, ' urgent=', 1, true)
        or tonumber(call('ZSCORE', exempt, name .. ':' .. entry.timeline) or nil) == base then
        put_exempt(exempt, name, entry.timeline, entry.run.base, now)
      end
    end
  end
end

local function finish(number, route)
  local _, leased, tokens, _, heads, _, ledger = keys_of_route(number)
  local closed, buried, kept, dropped = route.closed, route.buried, {}, {}
  for _, entry in ipairs(buried) do
    local fate = entry.is_dropped and dropped or kept
    fate[#fate + 1] = entry
  end
  wait_again_all(number, route)
  if route.has_retries then
    exempt_retries_of(number, route)
  end
  if #closed > 0 then
    begin_count(ledger, 'delivered')
  end
  if #buried > 0 then
    begin_count(ledger, 'buried')
    set_heads(heads, buried, marked_as_burying)
  end
  if #dropped > 0 then
    begin_count(ledger, 'deleted')
  end
  if #closed > 0 then
    close(closed, route)
  end
  for _, entry in ipairs(kept) do
    bury(entry, route)
  end
  for _, entry in ipairs(dropped) do
    drop(entry, route)
  end
  for _, entry in ipairs(route.waiting) do
    if entry.goes_on then
      call('ZREM', dead, entry.id)
    end
  end
  set_heads(heads, route.accepted, head_afterwards)
  if #closed > 0 then
    local records = records_of(closed)
    end_count(ledger, 'delivered', { 'delivered', records, 'snapshots', -records })
  end
  if #buried > 0 then
    local records = records_of(kept)
    end_count(ledger, 'buried', { 'buried', records, 'snapshots', -records })
  end
  if #dropped > 0 then
    local records = records_of(dropped)
    end_count(ledger, 'deleted', { 'deleted', records, 'snapshots', -records })
  end
  end_exempt_retries(number, route)
  local names = {}
  for place = 1, #route.accepted do
    names[place] = route.accepted[place].timeline
  end
  call('HDEL', tokens, unpack(names))
  call('ZREM', leased, unpack(names))
end

local routes = routes_of_call()
if has_burials then
  look_at('ZCARD', dead)
  look_at('HLEN', dead_details)
end
for number, route in ipairs(routes) do
  if #route.entries > 0 then
    plan(number, route)
  end
end
look_at_shared(routes, agenda)
begin_writes(agenda)
for number, route in ipairs(routes) do
  if #route.entries > 0 and #route.accepted > 0 then
    finish(number, route)
  end
end
return answers
