-- open: begins, or takes up again, the digests of leased timelines, any number of a partition in one call. A snapshot
-- is frozen: one id, one set of records.
--
-- KEYS  as lib/route_keys.lua has them; of each timeline: set, values, digest, digest values
-- ARGV  1 now (ms, '' = Redis' clock)   2 number of routes R
--       then per route: length of what stands before a timeline's name in the key of its set; what a digest left over
--         does when there are newer records (0: it goes out as it was, and they follow in the next one; a capacity: it
--         takes them in, the newest so many, and is a new digest under the new id, of the same iteration; as with 0
--         where that is more work than one call may do); number of instants E; E instants: the earliest next digest
--         (ms) of iteration 1, 2, …; the last stands for all later ones
--       then run after run of timelines of one claim and route: number of the route (from 1), token, number of
--         timelines; per timeline: id for a new digest
-- RETURNS { now, then per timeline two: a word, and
--         'stale', '': the lease is another's
--         'empty', '': nothing to send; the timeline is forgotten
--         'burying', 'ID NEXT EARLIEST': a bury of it was cut off, and has to be done again with this token
--         'reviving', head: its revival was cut off, and has to be done again
--         'damaged', error: a key of its own has another type; nothing of it changed
--         'later', '': the digests before it were work enough for one call; nothing of it changed, ask again
--         'opened' | 'again' | 'merged', head: as lib/head.lua has it
--       } It counts no attempt: asked again with the same ids it returns the same digests with the same numbers.
-- ERRORS none of its own. A key that timelines share and that has another type stops the call before its first write.
-- EFFECT leases stay as they are. Each digest that is returned was written, at least its token: what wrote nothing
--       waits for no replica (WAIT). A call that was cut off sent nothing, so what it had begun may become another
--       digest.
--
-- @include lib/route_keys.lua
-- @include lib/now.lua
-- @include lib/move.lua
-- @include lib/union.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua

local MOST_MERGED = 2000 -- records that are taken in, and that go for capacity's sake: some 10 ms of Redis
local MOST_MERGED_PER_CALL = 5000 -- the same, of all digests of a call but the first that is merged: below 15 ms
local KEYS_OF_TIMELINE = 4
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local now, route_count = now_ms(ARGV[1]), tonumber(ARGV[2])
-- As text: Redis formats a number for every call it is given to, and with all digits that a double may have.
local now_text = format('%d', now)
local first_own = KEYS_OF_ROUTE * route_count + 3 -- key of a timeline
local timeline_count, agenda = KEYS[first_own - 2], KEYS[first_own - 1]
local answers, merged = { now }, 0

local function put_into_answer(entry, word, text)
  answers[2 * entry.number], answers[2 * entry.number + 1] = word, text
end

-- Reads the arguments. Returns the routes, each with the entries of its timelines, by place, and what is asked of Redis
-- for all of them at once.
local function routes_of_call()
  local routes, at, number = {}, 3, 0
  for route_number = 1, route_count do
    local next_count = tonumber(ARGV[at + 2])
    routes[route_number] = {
      name_from = ARGV[at] + 1, capacity = tonumber(ARGV[at + 1]), next_from = at + 3, next_last = at + 2 + next_count,
      usual_heads = {}, entries = {}, names = {}, values = {},
    }
    at = at + 3 + next_count
  end
  while at <= #ARGV do
    local route, token, last = routes[tonumber(ARGV[at])], ARGV[at + 1], at + 2 + ARGV[at + 2]
    local entries, names, values, name_from = route.entries, route.names, route.values, route.name_from
    local place = #entries
    for id_at = at + 3, last do
      local own = first_own + KEYS_OF_TIMELINE * number
      local timeline = substring(KEYS[own], name_from)
      number, place = number + 1, place + 1
      -- With all fields that a usual one has, which are no more than eight: a table that grows is made anew, and has
      -- room for twice as many.
      entries[place] = {
        number = number, own = own, timeline = timeline, token = token, new_id = ARGV[id_at], head = '', packed = false,
        newer = 0,
      }
      names[place], values[place] = timeline, KEYS[own + 1]
    end
    at = last + 1
  end
  return routes
end

-- Returns set, values, digest and digest values of an entry.
local function keys_of(entry)
  return unpack(KEYS, entry.own, entry.own + KEYS_OF_TIMELINE - 1)
end

-- What the losses hash has of the entries.
local function read_losses(losses, entries)
  local fields = {}
  for place, entry in ipairs(entries) do
    fields[3 * place - 2], fields[3 * place - 1] = 's' .. entry.timeline, 'c' .. entry.timeline
    fields[3 * place] = 'x' .. entry.timeline
  end
  local lost = call('HMGET', losses, unpack(fields))
  for place, entry in ipairs(entries) do
    entry.lost_superseded, entry.lost_capacity = tonumber(lost[3 * place - 2] or 0), tonumber(lost[3 * place - 1] or 0)
    entry.lost_cancelled = tonumber(lost[3 * place] or 0)
  end
end

-- Returns why nothing is to be done of an entry that has an id, as its answer, or nil. Counts its digest's records.
local function refusal(entry)
  local _, values, snapshot, snapshot_values = keys_of(entry)
  local total, texts, own = redis.pcall('ZCARD', snapshot), redis.pcall('HLEN', snapshot_values), 0
  if total == 0 and texts ~= 0 then
    own = redis.pcall('HLEN', values)
  end
  local damage = type(total) == 'table' and total or type(texts) == 'table' and texts or type(own) == 'table' and own
  if damage then
    return 'damaged', damage.err
  end
  if field_of(entry.head, 'burying') == entry.id and field_of(entry.head, 'closed') ~= entry.id then
    return 'burying', entry.id .. ' ' .. (field_of(entry.head, 'next') or '')
  end
  if total == 0 and texts > 0 and byte(entry.timeline) == REVIVED then
    return 'reviving', entry.head
  end
  entry.total, entry.has_left_values = total, total == 0 and texts > 0
end

-- What is to be done of an entry that has an id.
local function action(entry, capacity)
  if entry.total == 0 then
    return entry.newer == 0 and 'forget' or 'open'
  end
  entry.is_merging = field_of(entry.head, 'merging') -- a merge was cut off
  -- Under its own id it may have been sent: this call was sent again, and may be carried out last.
  local may_merge = capacity > 0 and entry.id ~= entry.new_id
    and entry.newer <= MOST_MERGED and entry.total <= capacity + MOST_MERGED
  return (entry.is_merging or (entry.newer > 0 and may_merge)) and 'merge' or 'again'
end

-- Returns what is to be done of an entry; or nil, and its answer. Counts its records.
local function task_of(entry, owner, capacity)
  if owner ~= entry.token then
    return nil, 'stale', ''
  end
  local newer = redis.pcall('ZCARD', KEYS[entry.own])
  if type(newer) == 'table' then
    return nil, 'damaged', newer.err
  end
  entry.newer = newer
  local id = entry.head ~= '' and field_of(entry.head, 'id')
  if not id then
    return newer == 0 and 'forget' or 'open'
  end
  entry.id = id
  local word, text = refusal(entry)
  if word then
    return nil, word, text
  end
  return action(entry, capacity)
end

-- Whether a merge, or an open that takes values back, has to wait for another call. Counts the records that it takes in
-- or looks at, and those that go for capacity's sake.
local function is_too_much(entry, capacity)
  local over = entry.has_left_values and 0 or math.max(0, entry.total + entry.newer - capacity)
  local work = entry.newer + over
  if merged > 0 and merged + work > MOST_MERGED_PER_CALL then
    return true
  end
  merged = merged + work
  return false
end

-- Looks at all that the call will write, and writes nothing. What a timeline's own keys do not allow becomes its
-- answer. Returns the others by what is to be done with them.
local function plan(number, route)
  local _, _, tokens, schedules, heads, losses = keys_of_route(number)
  local entries, names, planned = route.entries, route.names, { open = {}, merge = {}, again = {}, forget = {} }
  local owners, known_heads = call('HMGET', tokens, unpack(names)), call('HMGET', heads, unpack(names))
  local packed = call('HMGET', schedules, unpack(names))
  local all_have_values = call('EXISTS', unpack(route.values)) == #entries
  route.has_losses = call('HLEN', losses) > 0
  if route.has_losses then
    read_losses(losses, entries)
  end
  for place = 1, #entries do
    local entry = entries[place]
    entry.head, entry.packed = known_heads[place] or '', packed[place]
    if not all_have_values then
      entry.has_no_values = call('EXISTS', route.values[place]) == 0
    end
    local task, word, text = task_of(entry, owners[place], route.capacity)
    if (task == 'merge' or task and entry.has_left_values) and is_too_much(entry, route.capacity) then
      put_into_answer(entry, 'later', '')
    elseif task then
      local theirs = planned[task]
      theirs[#theirs + 1] = entry
    else
      put_into_answer(entry, word, text)
    end
  end
  return planned
end

local function next_earliest(route, iteration)
  return ARGV[math.min(route.next_from + iteration - 1, route.next_last)]
end

-- The records are counted by the schedule; what an add that was cut off had written, but not counted, is counted here.
-- Returns the schedule without records, how many it had counted, and how many it had not.
local function counted_by_schedule(entry)
  local base, bound, counted = unpack_schedule(entry.packed, now) -- it is not there where a delete was cut off
  return struct.pack(SCHEDULE, base, bound, 0), counted, math.max(0, entry.newer - counted)
end

-- A timeline without records: known no more.
local function forget(number, forgotten)
  local waiting, leased, tokens, schedules, heads, losses = keys_of_route(number)
  for _, entry in ipairs(forgotten) do
    local _, values, _, snapshot_values = keys_of(entry)
    call('HDEL', losses, 's' .. entry.timeline, 'c' .. entry.timeline, 'x' .. entry.timeline)
    call('UNLINK', values) -- values without a record: a call was cut off
    call('UNLINK', snapshot_values)
    call('HDEL', heads, entry.timeline)
    if call('HDEL', schedules, entry.timeline) == 1 then
      call('DECR', timeline_count)
    end
    call('ZREM', waiting, entry.timeline) -- where a claim that was cut off left it
    strike_out(agenda, waiting)
    end_lease(leased, tokens, entry.timeline)
    put_into_answer(entry, 'empty', '')
  end
end

-- What of a fresh digest's head follows its id.
local function head_behind_id(route, iteration, records, superseded, capacity)
  return format(' opened=%s total=%d superseded=%d capacity=%d next=%s since=%s attempts=0 tries=0', now_text, records,
    superseded, capacity, next_earliest(route, iteration), now_text)
end

-- The head of a timeline's first digest that lost nothing. Many of a call have the same but for its id.
local function usual_head(route, entry)
  local usual, records = route.usual_heads, entry.newer
  local behind = usual[records]
  if not behind then
    behind = head_behind_id(route, 1, records, 0, 0)
    usual[records] = behind
  end
  return ' iteration=1 id=' .. entry.new_id .. behind
end

local function fresh_head(route, entry)
  local before, iteration = ' iteration=1', 1
  if entry.head ~= '' then -- it has had digests
    -- Where it has an id already, an open was cut off here, and has counted.
    iteration = tonumber(field_of(entry.head, 'iteration') or 0) + (entry.id and 0 or 1)
    before = with_number(of_timeline(entry.head), 'iteration', iteration)
  end
  local superseded, capacity = entry.lost_superseded or 0, entry.lost_capacity or 0
  local cancelled = (entry.lost_cancelled or 0) > 0 and format(' cancelled=%d', entry.lost_cancelled) or ''
  local behind = head_behind_id(route, iteration, entry.newer, superseded, capacity)
  return before .. ' id=' .. entry.new_id .. behind .. cancelled
end

-- The fields of the losses hash that go into the heads of these digests.
local function losses_of(fresh)
  local fields = {}
  for _, entry in ipairs(fresh) do
    if (entry.lost_superseded or 0) > 0 then
      fields[#fields + 1] = 's' .. entry.timeline
    end
    if (entry.lost_capacity or 0) > 0 then
      fields[#fields + 1] = 'c' .. entry.timeline
    end
    if (entry.lost_cancelled or 0) > 0 then
      fields[#fields + 1] = 'x' .. entry.timeline
    end
  end
  return fields
end

-- Empties the place of a digest's values. Values that are there belong to a digest that has ended, or an open that was
-- cut off moved them ahead of their index. The records of the open set that have no value take theirs back.
local function clear_place(entry)
  local index, values, _, snapshot_values = keys_of(entry)
  take_back_values(index, values, snapshot_values)
  call('UNLINK', snapshot_values)
  entry.has_no_values = call('EXISTS', values) == 0
end

-- Opens fresh digests, all of a route together. A head is written before its records move: a snapshot without an id
-- would belong to no digest. The values move before their index, into an empty place: a snapshot that is there has its
-- own values, wherever a call was cut off.
local function open(number, route, fresh)
  local _, _, _, schedules, heads, losses, ledger = keys_of_route(number)
  local heads_set, schedules_set, opened, uncounted = {}, {}, 0, 0
  local packed, records, schedule, extra -- those of the entry before: most of a call have the same
  for place = 1, #fresh do
    local entry = fresh[place]
    local is_usual = entry.head == '' and not entry.lost_superseded
    local head = is_usual and usual_head(route, entry) or fresh_head(route, entry)
    if entry.packed ~= packed or entry.newer ~= records then
      packed, records = entry.packed, entry.newer
      schedule, _, extra = counted_by_schedule(entry)
    end
    heads_set[2 * place - 1], heads_set[2 * place] = entry.timeline, head
    schedules_set[2 * place - 1], schedules_set[2 * place] = entry.timeline, schedule
    opened, uncounted = opened + records, uncounted + extra
    put_into_answer(entry, 'opened', head)
  end
  begin_count(ledger, 'superseded')
  for place = 1, #fresh do
    if fresh[place].has_left_values then
      clear_place(fresh[place])
    end
  end
  call('HSET', heads, unpack(heads_set))
  for place = 1, #fresh do
    local entry = fresh[place]
    local own = entry.own
    if not entry.has_no_values then
      rename(KEYS[own + 1], KEYS[own + 3])
    end
    rename(KEYS[own], KEYS[own + 2])
  end
  if route.has_losses then
    local gone = losses_of(fresh)
    if #gone > 0 then
      call('HDEL', losses, unpack(gone))
    end
  end
  call('HSET', schedules, unpack(schedules_set))
  end_count(ledger, 'superseded',
    { 'superseded', 0, 'added', uncounted, 'open', uncounted - opened, 'snapshots', opened })
end

-- A digest left over takes in what came since, and becomes a new one.
local function merge(number, route, entry)
  local _, _, _, schedules, heads, losses, ledger = keys_of_route(number)
  local index, values, snapshot, snapshot_values = keys_of(entry)
  local schedule, counted, uncounted = counted_by_schedule(entry)
  local total = tonumber(entry.is_merging or entry.total)
  local iteration = tonumber(field_of(entry.head, 'iteration') or 0)
  local head = with_field(entry.head, 'id', entry.new_id)
  head = with_number(with_number(with_number(head, 'merging', total), 'opened', now), 'attempts', 0)
  begin_count(ledger, 'superseded')
  call('HSET', heads, entry.timeline, head)
  unite(index, values, snapshot, snapshot_values)
  local united = call('ZCARD', snapshot)
  local trimmed = route.capacity > 0 and trim(snapshot, snapshot_values, route.capacity) or 0
  local superseded, capacity = entry.lost_superseded or 0, entry.lost_capacity or 0
  local met = total + counted + uncounted - united
  head = string.gsub(string.gsub(head, ' merging=%S+', ''), ' urgent=%S+', '') -- what was urgent is in it now
  head = with_field(head, 'next', next_earliest(route, iteration))
  head = with_number(head, 'total', united - trimmed)
  head = with_number(head, 'superseded', field_of(head, 'superseded') + met + superseded)
  head = with_number(head, 'capacity', field_of(head, 'capacity') + trimmed + capacity)
  if (entry.lost_cancelled or 0) > 0 then
    head = with_number(head, 'cancelled', (field_of(head, 'cancelled') or 0) + entry.lost_cancelled)
  end
  call('UNLINK', index, values)
  call('HSET', heads, entry.timeline, head)
  call('HDEL', losses, 's' .. entry.timeline, 'c' .. entry.timeline, 'x' .. entry.timeline)
  call('HSET', schedules, entry.timeline, schedule)
  end_count(ledger, 'superseded', { 'superseded', met, 'added', uncounted, 'open', -counted,
    'snapshots', united - trimmed - total, 'dropped:capacity', trimmed })
  put_into_answer(entry, 'merged', head)
end

-- Takes up a digest as it was. One that lost records goes under a new id: no receiver has seen that one.
local function take_up(number, entry)
  local _, _, tokens, _, heads = keys_of_route(number)
  if (tonumber(field_of(entry.head, 'total')) or entry.total) ~= entry.total then
    entry.head = with_number(with_field(entry.head, 'id', entry.new_id), 'total', entry.total)
    call('HSET', heads, entry.timeline, entry.head)
  end
  call('HSET', tokens, entry.timeline, entry.token)
  put_into_answer(entry, 'again', entry.head)
end

local routes, planned = routes_of_call(), {}
for number, route in ipairs(routes) do
  if #route.entries > 0 then
    planned[number] = plan(number, route)
  end
end
look_at_shared(routes, agenda)
begin_writes(agenda)
for number, route in ipairs(routes) do
  local what = planned[number]
  if what then
    if #what.open > 0 then
      open(number, route, what.open)
    end
    for _, entry in ipairs(what.merge) do
      merge(number, route, entry)
    end
    for _, entry in ipairs(what.again) do
      take_up(number, entry)
    end
    forget(number, what.forget)
  end
end
return answers
