-- add: files records of one route into their timelines. A join: replaying, splitting or reordering batches ends the
-- same.
--
-- KEYS  1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 heads hash   6 losses hash   7 ledger hash
--       8 count of timelines   9 agenda zset
--       then for each timeline of the first kind: set zset, values hash;
--       then for each of the second kind (some record may be a repeat, is urgent or is muted): set zset, values hash,
--       digest zset, shown zset; where records may end others, its ends zset, too;
--       then, with quiet hours and an urgent record, exempt zset
-- ARGV  1 now (ms, '' = Redis' clock)    2 capacity (records)          3 increment (ms)
--       4 base, 5 bound (ms) of a timeline that begins here            6 most timelines of this partition
--       7 length of what stands before the timeline's name in its keys 8 timelines of the first kind; below 0:
--         there are none, and it is minus the sum of 1: records of the route may end others (lib/cancel.lua), 2: its
--         timelines have zones of their own, 4: the route has quiet hours, and some record is urgent
--       9 the batch, packed big-endian: of each timeline u16 records; of each record u16 length + key, and its score as
--         17 characters: minus the timestamp (µs), zero-padded; of each record of a timeline of the second kind u8,
--         the sum of 1: may be a repeat, 2: is urgent, 4: an operator muted its timeline, it is
--         counted and not kept, 8: ends the record of its key, 16: silently. At most 500 records.
--       where records may end others: 10 how long ends, and what was shown, are remembered (ms)   11 most entries of
--         a timeline's ends
--       where timelines have zones: the zone that all events of this call name ('': none); base and bound (ms) of one
--         that waits and gets another zone, where its instants depend on that, else '' and ''
--       then the values, in the order of the records
-- RETURNS { now, added, superseded, over capacity, over the limit of timelines, duplicates, repeated,
--           { numbers of the timelines that are due at once since this call }, counted, muted, cancelled }
--       repeated: exact copies of records that are there; they change nothing and are in no other count. The ledger
--       counts them, outside its equation: a replay has to write something, for what wrote nothing waits for no replica
--       (WAIT)
--       cancelled: records that an end took out, ends among them; those of earlier calls, too, which are not in 'added'
--       counted: what the ledger has under 'added' now; it only grows, so a smaller one tells that Redis lost something
-- ERRORS none of its own. Its first write is one that maxmemory can refuse, so a full Redis refuses it whole.
-- EFFECT a timeline that begins waits and is on the agenda; one that is known keeps its place among those that wait,
--        whatever its records say (claim works it out), unless an urgent record came in: then base = bound = EXEMPT, or
--        where a digest of it is under way the head says that the next one is to follow at once. An urgent record that
--        was refused, lost to a newer one or is there already changes nothing of that. The zone of a timeline is that
--        of its newest record which names one; its head has it. Counts all in one write, the last one.
--
-- @include lib/now.lua
-- @include lib/records.lua
-- @include lib/cancel.lua
-- @include lib/schedule.lua
-- @include lib/ledger.lua
-- @include lib/head.lua
-- @include lib/zone.lua
-- @include lib/exempt.lua

-- Two things here are for speed, and measured. Values are arguments of their own, for Lua hashes every string it is
-- given from end to end: inside the batch each value would be hashed twice. And a record's score is minus its
-- timestamp, so that the newest stands first: Redis walks a small set from its head, and a newcomer finds its place
-- there at once. (As text, since Redis formats and parses a number for every call.)
local FIXED_KEYS = 9
local UNSEEN = { [OVER_TIMELINES] = true, [DUPLICATE] = true, [MUTED] = true, [CANCELLED] = true } -- not in the set
local LOSSES = { [SUPERSEDED] = 's', [OVER_CAPACITY] = 'c', [CANCELLED] = 'x' }
local call, unpack_from, pack = redis.call, struct.unpack, struct.pack
local waiting, _, _, schedules, heads, losses, ledger, timeline_count, agenda = unpack(KEYS, 1, FIXED_KEYS)
local now, capacity, increment = now_ms(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local first_base, first_bound = tonumber(ARGV[4]), tonumber(ARGV[5])
local first_instants, exempt_instants = pack('>I8I8', first_base, first_bound), pack('>I8I8', EXEMPT, EXEMPT)
local name_from, plain, batch = ARGV[7] + 1, tonumber(ARGV[8]), ARGV[9]
local has_ends, width, fixed_arguments, zone, zone_instants, exempt = false, 4, 9, '', nil, nil
if plain < 0 then
  local kinds = -plain
  has_ends, exempt = kinds % 2 == 1, kinds >= 4 and KEYS[#KEYS] or nil
  width, fixed_arguments = has_ends and 5 or 4, has_ends and 11 or 9
  if kinds % 4 >= 2 then
    local base, bound
    zone, base, bound = unpack(ARGV, fixed_arguments + 1, fixed_arguments + 3)
    fixed_arguments = fixed_arguments + 3
    zone_instants = base ~= '' and pack('>I8I8', tonumber(base), tonumber(bound))
  end
  plain = 0
end

-- A timeline that is not known has no records, unless an add was cut off before its timeline began. They count as this
-- call's, and the timeline begins, whatever becomes of what comes now: a record that comes again may be a duplicate by
-- then. Returns how many there are. (Values without a record are of a record that was not written.)
local function left_by_another(index, values)
  if call('EXISTS', index, values) == 0 then
    return 0
  end
  local records = call('ZCARD', index)
  if records == 0 and call('HLEN', values) > 0 then -- an error where it is no hash: what is not ours stays
    call('UNLINK', values)
  end
  return records
end

-- Whether a call was cut off before it counted: it may have written an urgent record and no more.
local function was_cut_off()
  return tonumber(call('HGET', ledger, 'unfinished:added')) > 1 -- this call's own
end

-- A known timeline of which an urgent record came in. While a digest of it is under way, its end lets the next one
-- follow at once. Returns whether that is so; else the timeline itself becomes due.
local function is_left_to_its_digest(snapshot, timeline)
  if call('EXISTS', snapshot) == 0 then
    return false
  end
  local head = call('HGET', heads, timeline)
  if not field_of(head, 'id') then
    return false
  end
  if not field_of(head, 'urgent') then
    call('HSET', heads, timeline, with_number(head, 'urgent', 1))
  end
  local due = exempt and call('ZSCORE', waiting, timeline)
  if due then -- its retry is not held back by quiet hours, and waits as long as it would
    local base = unpack_schedule(call('HGET', schedules, timeline), now)
    put_exempt(exempt, route_of(waiting), timeline, base, now)
  end
  return true
end

-- Returns whether it waits. (A leased one is about to be opened, and that takes the record.)
local function make_due_at_once(timeline)
  if not call('ZSCORE', waiting, timeline) then
    return false
  end
  call('ZADD', waiting, EXEMPT, timeline)
  put_down(agenda, waiting, EXEMPT)
  return true
end

-- Of a timeline whose records may end others.
local function conclude_ends(timeline, ends, memory, lost)
  remember_ends(ends, memory, ARGV[10], ARGV[11])
  for letter, count in pairs(lost or {}) do
    if count > 0 then
      call('HINCRBY', losses, letter .. timeline, count)
    end
  end
end

-- Whether a known timeline whose zone is another one now gets other instants: not what is due already, exempt from its
-- policy, being delivered, or waits for another attempt.
local function may_move(timeline, instants, records, head)
  local base, bound = unpack_from('>I8I8', instants)
  return bound > EXEMPT and due_ms(base, bound, increment, records) > now and not field_of(head, 'id')
    and call('ZSCORE', waiting, timeline)
end

-- A known timeline may be due sooner than where it stands among those that wait: records left it, or it has other
-- instants.
local function bring_forward(timeline, instants, records)
  if not call('ZSCORE', waiting, timeline) then
    return
  end
  local base, bound = unpack_from('>I8I8', instants)
  local due = due_ms(base, bound, increment, records)
  call('ZADD', waiting, 'LT', due, timeline)
  put_down(agenda, waiting, due)
end

local names = {}
for number = 1, plain do
  names[number] = string.sub(KEYS[FIXED_KEYS + 2 * number - 1], name_from)
end
for number = plain + 1, plain + math.floor((#KEYS - FIXED_KEYS - 2 * plain) / width) do
  names[number] = string.sub(KEYS[FIXED_KEYS + 2 * plain + width * (number - plain - 1) + 1], name_from)
end
begin_count(ledger, 'added')
local known = call('HMGET', schedules, unpack(names))
local known_heads, zoned_heads = zone ~= '' and call('HMGET', heads, unpack(names)), {}
local places = tonumber(ARGV[6]) - (tonumber(call('GET', timeline_count)) or 0)

local fates, left_over, opened, kept, taken_out = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0, 0, 0, 0
local changed, changes, beginnings, due_at_once, first_due = {}, 0, {}, {}, math.huge
local keys, arguments = KEYS, ARGV
-- All of them in one call: a call of a function costs as much as a dozen steps of Lua.
local counts = { unpack_from('>' .. string.rep('H', #names), batch) }
local scored = { unpack_from('>' .. string.rep('Hc0c17', #arguments - fixed_arguments), batch, 2 * #names + 1) }
local position, at, places_from = 1, FIXED_KEYS + 1, fixed_arguments
for number = 1, #names do
  local index, values, schedule = keys[at], keys[at + 1], known[number]
  local second_kind, instants, held_before, met_known_key = number > plain, first_instants, 0, false
  local held, is_urgent, refusal, lost_here, newest = 0, false, nil, nil, nil
  if schedule and #schedule == SCHEDULE_BYTES then
    instants, held_before = schedule, unpack_from('>I4', schedule, 17) -- base and bound stay packed as they are
    if held_before >= capacity then -- an open that was cut off may have taken some
      held_before = math.min(held_before, call('ZCARD', index))
    end
    held = held_before
  else
    held = left_by_another(index, values)
    left_over = left_over + held
    refusal = held == 0 and places <= 0 and OVER_TIMELINES or nil
  end
  local places_to = places_from + counts[number] -- of its records among the arguments
  for place = places_from + 1, places_to do
    local key, score, is_loser, gone, is_newer
    key, score, position = scored[position], scored[position + 1], position + 2
    local value, fate, possible_repeat, urgent = arguments[place], refusal, false, false
    if second_kind then
      local flags = string.byte(batch, place - #arguments - 1)
      possible_repeat, urgent, fate = flags % 2 == 1, flags % 4 >= 2, flags % 8 >= 4 and MUTED or refusal
      if known_heads and not fate then
        newest = math.min(newest or 0, tonumber(score))
      end
      if has_ends and not fate then
        local how = { possible_repeat = possible_repeat, is_end = flags >= 8, is_silent = flags >= 16 }
        score = how.is_end and score .. END or score
        fate, is_loser, gone, is_newer =
          meet_ends(index, values, keys[at + 2], keys[at + 3], keys[at + 4], key, score, how)
        held, taken_out = held - gone, taken_out + gone
      end
    end
    if fate then
      is_loser = is_loser or false -- decided already; where it was refused, before any look at its set
    elseif possible_repeat and not has_ends and is_duplicate(keys[at + 2], keys[at + 3], key, score) then
      fate = DUPLICATE
    elseif held >= capacity and not call('ZSCORE', index, key) then
      fate, is_loser = into_full_set(index, values, key, score, value)
    else
      local is_only_value = held < capacity and call('HSETNX', values, key, value) == 1
      if is_only_value and call('ZADD', index, 'NX', score, key) == 1 then
        held, kept = held + 1, kept + 1
      else
        fate, is_loser = contend(index, values, key, score, value)
        met_known_key = true
        held = fate == KEPT and held + 1 or held
        if is_only_value and is_loser then -- an open that was cut off has the value of the record that stands
          call('HDEL', values, key)
        end
      end
    end
    if is_newer and not is_loser then
      forget_end(keys[at + 4], key)
    end
    if urgent and not is_loser and not is_urgent and not UNSEEN[fate] then
      is_urgent = fate ~= REPEATED or was_cut_off()
    end
    if fate then
      -- Told by the next digest: what lost for the first time, for all that is known.
      local lost = LOSSES[fate]
      if lost and has_ends and not (is_loser and possible_repeat) then
        lost_here = lost_here or { s = 0, c = 0, x = 0 }
        lost_here[lost] = lost_here[lost] + 1 + (gone or 0)
      elseif lost and not (is_loser and possible_repeat) then
        call('HINCRBY', losses, lost .. names[number], 1)
      end
      fates[fate] = fates[fate] + 1
    end
  end
  places_from = places_to
  if met_known_key then
    -- An earlier call may have been cut off after it wrote records and before it counted them: count what is there.
    -- Else (a key twice in this batch, or in the set before) there is nothing more than what was counted.
    local there = math.max(held, call('ZCARD', index))
    left_over, held = left_over + there - held, there
  end
  local is_exempt = is_urgent and not (schedule and is_left_to_its_digest(keys[at + 2], names[number]))
  if is_exempt and string.sub(instants, 1, #exempt_instants) ~= exempt_instants then
    instants = exempt_instants
    if schedule and make_due_at_once(names[number]) then
      due_at_once[#due_at_once + 1] = number
    end
  end
  if has_ends then
    conclude_ends(names[number], keys[at + 4], keys[at + 3], (schedule or held > 0) and lost_here)
  end
  local is_moved = false
  if newest and (schedule or held > 0) then
    local present = is_urgent and call('HGET', heads, names[number]) or known_heads[number] -- it may say so since
    local head, has_changed = with_zone(present or '', zone, -newest)
    if head then
      zoned_heads[#zoned_heads + 1], zoned_heads[#zoned_heads + 2] = names[number], head
    end
    is_moved = has_changed and schedule and zone_instants and may_move(names[number], instants, held, head)
    instants = is_moved and zone_instants or instants
  end
  if (held ~= held_before or is_moved or instants == exempt_instants) and (schedule or held > 0) then
    opened = opened + held - held_before
    changed[changes + 1], changed[changes + 2] = names[number], pack('>c16I4', instants, held)
    changes = changes + 2
    if not schedule then
      places = places - 1
      local due = is_exempt and EXEMPT or due_ms(first_base, first_bound, increment, held)
      beginnings[#beginnings + 1] = due
      beginnings[#beginnings + 1] = names[number]
      first_due = math.min(first_due, due)
      if due <= now then
        due_at_once[#due_at_once + 1] = number
      end
    elseif held < held_before or is_moved then
      bring_forward(names[number], instants, held)
    end
  end
  at = at + (second_kind and width or 2)
end
fates[KEPT] = fates[KEPT] + kept

-- In this order: broken off here (a right is missing, a key is of another type), the timelines begin anew when it comes
-- again.
if #beginnings > 0 then
  call('ZADD', waiting, unpack(beginnings))
  put_down(agenda, waiting, first_due)
end
if #changed > 0 then
  call('HSET', schedules, unpack(changed))
end
if #zoned_heads > 0 then
  call('HSET', heads, unpack(zoned_heads))
end
if #beginnings > 0 then
  call('INCRBY', timeline_count, #beginnings / 2)
end
local added = left_over + fates[MUTED] + fates[CANCELLED]
for fate = KEPT, DUPLICATE do
  added = added + fates[fate]
end
local counted = end_count(ledger, 'added', { 'added', added, 'open', opened, 'superseded', fates[SUPERSEDED],
  'dropped:capacity', fates[OVER_CAPACITY], 'dropped:timelines', fates[OVER_TIMELINES],
  'dropped:duplicate', fates[DUPLICATE], 'dropped:muted', fates[MUTED], 'repeated', fates[REPEATED],
  'dropped:cancelled', fates[CANCELLED] + taken_out })
return { now, added, fates[SUPERSEDED], fates[OVER_CAPACITY], fates[OVER_TIMELINES], fates[DUPLICATE], fates[REPEATED],
  due_at_once, counted, fates[MUTED], fates[CANCELLED] + taken_out }
