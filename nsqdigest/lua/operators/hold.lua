-- hold: an operator mutes or snoozes a timeline until an instant, or ends that. Muted: records that come are not kept
-- (each comes to add with a flag). Snoozed: nothing of it goes out before that instant.
--
-- KEYS  as lib/timeline_keys.lua has them; then 15 holds hash of the partition
-- ARGV  1 now (ms, '' = Redis' clock)   2 timeline   3 its field among the holds
--       4 'mute' | 'snooze' | '' (ends what there is)   5 until (ms; not of '')   6 by whom (not of '')
--       7 most holds of a partition
-- RETURNS { 'held', what was held before: 'mute' | 'snooze' | '' }
--         { 'ended', what was held: 'mute' | 'snooze' }
--         { 'unknown' }: there is nothing to end
--         { 'full' }: there are as many holds as there may be; nothing changed
-- ERRORS none of its own.
-- EFFECT a hold is 'KIND UNTIL SINCE BASE BOUND BY': base and bound as they were before a snooze moved them, or 0 0. A
--        snooze moves base and bound of a timeline that waits to its end at least; its end moves them back, where
--        nobody else moved them. What is over is removed, and the whole hash expires with its last hold.
--
-- @include lib/timeline_keys.lua
-- @include lib/now.lua
-- @include lib/schedule.lua

local holds = KEYS[15]
local now, timeline, field, kind, most = now_ms(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[7])
local until_ms, by = tonumber(ARGV[5]) or 0, ARGV[6]

-- Returns the kind, and until, since, base and bound.
local function read(hold)
  local is, till, since, base, bound = string.match(hold or '', '^(%S+) (%d+) (%d+) (%d+) (%d+)')
  return is or '', tonumber(till) or 0, tonumber(since) or 0, tonumber(base) or 0, tonumber(bound) or 0
end

-- Looks at all, a bounded number. Returns those that are over, how many are left but this one, and the last end of
-- these.
local function look_at_all()
  local over, left, last = {}, 0, 0
  local all = redis.call('HGETALL', holds)
  for place = 1, #all, 2 do
    local _, till = read(all[place + 1])
    if till <= now and all[place] ~= field then
      over[#over + 1] = all[place]
    elseif all[place] ~= field then
      left, last = left + 1, math.max(last, till)
    end
  end
  return over, left, last
end

local function set_instants(base, bound, score, records)
  redis.call('HSET', schedules, timeline, struct.pack(SCHEDULE, base, bound, records))
  redis.call('ZADD', waiting, score, timeline)
  put_down(agenda, waiting, score)
end

local over, left, last = look_at_all()
local had, had_until, _, had_base, had_bound = read(redis.call('HGET', holds, field))
if had ~= '' and had_until <= now then
  had = ''
end
if kind == '' and had == '' then
  return { 'unknown' }
end
if kind ~= '' and left >= most then
  return { 'full' }
end
begin_writes(agenda)
local known, waits = redis.call('HGET', schedules, timeline), redis.call('ZSCORE', waiting, timeline)
local base, bound, records = unpack_schedule(known, now)
if known and waits and had == 'snooze' then
  if had_base > 0 and base == math.max(had_base, had_until) and bound == math.max(had_bound, had_until) then
    base, bound = had_base, had_bound
  end
end
local moved_base, moved_bound = 0, 0
if kind == 'snooze' and known and waits then
  moved_base, moved_bound = base, bound
end
-- The hold before the instants that it explains, and after those that it explained.
if kind ~= '' then
  redis.call('HSET', holds, field,
    string.format('%s %d %d %d %d %s', kind, until_ms, now, moved_base, moved_bound, by))
  redis.call('PEXPIRE', holds, string.format('%d', math.max(until_ms, last) - now))
end
if kind == 'snooze' and known and waits then
  local later_base = math.max(base, until_ms)
  set_instants(later_base, math.max(bound, until_ms), math.min(later_base, math.max(bound, until_ms)), records)
elseif known and waits and had == 'snooze' then
  set_instants(base, bound, math.min(base, bound), records)
end
if kind == '' then
  over[#over + 1] = field
end
if #over > 0 then
  redis.call('HDEL', holds, unpack(over))
end
return { kind == '' and 'ended' or 'held', had }
