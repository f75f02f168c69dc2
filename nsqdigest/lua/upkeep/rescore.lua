-- rescore: timelines that wait get the instants of their route's policy, which has changed since they were scored.
--
-- KEYS  1 waiting zset   2 schedule hash   3 heads hash   4 agenda zset   5 policies hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 increment (ms)   3 route   4 the policy to remember for it ('': none yet)
--       then per timeline (none, or some hundreds): name; id of the digest that ended last, as the caller saw it
--       ('': none); base and bound (ms); its anchor, as its head is to keep it (store/rescoring.py)
-- RETURNS { now, timelines that are due sooner than before, those that are due later }
-- ERRORS none of its own.
-- EFFECT base, bound and anchor of a timeline that waits, unless it is due already, is exempt from its policy, waits
--        for another attempt, or had a digest since the caller looked. A score that is too early stays: claim puts it
--        right. Called again with the same arguments it changes nothing.
--
-- @include lib/now.lua
-- @include lib/schedule.lua
-- @include lib/head.lua

local FIXED_ARGUMENTS, ARGUMENTS_OF_TIMELINE = 4, 5
local waiting, schedules, heads, agenda, policies = unpack(KEYS)
local now, increment = now_ms(ARGV[1]), tonumber(ARGV[2])
local names, scores, kept, anchored, first_due, sooner, later = {}, {}, {}, {}, math.huge, 0, 0

-- Returns the records of a timeline and when it is due, or nil where it stays as it is.
local function may_move(timeline, packed, head, ended)
  if not packed or not redis.call('ZSCORE', waiting, timeline) then
    return nil
  end
  local base, bound, records = unpack_schedule(packed, now)
  local due = due_ms(base, bound, increment, records)
  if due <= now or bound <= EXEMPT or field_of(head, 'id') or (field_of(head, 'closed') or '') ~= ended then
    return nil
  end
  return records, due
end

for at = FIXED_ARGUMENTS + 1, #ARGV, ARGUMENTS_OF_TIMELINE do
  names[#names + 1] = ARGV[at]
end
if #names > 0 then
  local packed, known = redis.call('HMGET', schedules, unpack(names)), redis.call('HMGET', heads, unpack(names))
  for place, timeline in ipairs(names) do
    local at = FIXED_ARGUMENTS + ARGUMENTS_OF_TIMELINE * (place - 1) + 2
    local records, due = may_move(timeline, packed[place], known[place] or '', ARGV[at])
    if records then
      local base, bound = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
      local due_anew = due_ms(base, bound, increment, records)
      if due_anew < now then -- it has waited longer than its policy says
        base, bound, due_anew = now, now, now
      end
      anchored[#anchored + 1] = timeline
      anchored[#anchored + 1] = with_field(known[place] or '', 'anchor', ARGV[at + 3])
      kept[#kept + 1], kept[#kept + 2] = timeline, struct.pack(SCHEDULE, base, bound, records)
      scores[#scores + 1], scores[#scores + 2] = due_anew, timeline
      first_due = math.min(first_due, due_anew)
      sooner, later = sooner + (due_anew < due and 1 or 0), later + (due_anew > due and 1 or 0)
    end
  end
end

begin_writes(agenda)
if #kept > 0 then
  redis.call('HSET', heads, unpack(anchored)) -- first: with the instants alone nobody could tell what they come from
  redis.call('ZADD', waiting, 'LT', unpack(scores))
  put_down(agenda, waiting, first_due)
  redis.call('HSET', schedules, unpack(kept))
end
if ARGV[4] ~= '' then
  redis.call('HSET', policies, ARGV[3], ARGV[4])
end
return { now, sooner, later }
