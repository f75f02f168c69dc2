-- recount: what is there of some timelines, each of them whole and at one instant. Changes nothing.
--
-- KEYS  1 waiting zset   2 leased zset   3 schedule hash
--       then per timeline: head hash, set zset, values hash, digest zset, digest-values hash
-- ARGV  the timelines, in that order
-- RETURNS seven numbers per timeline: in how many of waiting and leased it is; the records that its schedule counts (-1: it has none);
--         open records, values of them; records that its head counts; records in the snapshot, values of them
-- ERRORS none of its own.
--
-- @include lib/schedule.lua

local waiting, leased, schedules = unpack(KEYS, 1, 3)
local answer = {}
local function say(number)
  answer[#answer + 1] = number
end

for number, timeline in ipairs(ARGV) do
  local head, index, values, snapshot, snapshot_values = unpack(KEYS, 5 * number - 1, 5 * number + 3)
  local known, counted = redis.call('HGET', schedules, timeline), -1
  if known and #known == struct.size(SCHEDULE) then
    local _, _, records = struct.unpack(SCHEDULE, known)
    counted = records
  end
  say((redis.call('ZSCORE', waiting, timeline) and 1 or 0) + (redis.call('ZSCORE', leased, timeline) and 1 or 0))
  say(counted)
  say(redis.call('ZCARD', index))
  say(redis.call('HLEN', values))
  say(tonumber(redis.call('HGET', head, 'total') or 0))
  say(redis.call('ZCARD', snapshot))
  say(redis.call('HLEN', snapshot_values))
end
return answer
