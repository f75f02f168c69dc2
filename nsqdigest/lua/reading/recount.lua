-- recount: what is there of some timelines, each of them whole and at one instant. Changes nothing.
--
-- KEYS  1 waiting zset   2 leased zset   3 schedule hash   4 heads hash
--       then per timeline: set zset, values hash, digest zset, digest-values hash
-- ARGV  the timelines, in that order
-- RETURNS seven numbers per timeline: in how many of waiting and leased it is; the records that its schedule counts
--         (-1: it has none); open records, values of them; records that its head counts; records in the snapshot,
--         values of them
-- ERRORS none of its own.
-- EFFECT none.
--
-- @include lib/schedule.lua
-- @include lib/head.lua

local waiting, leased, schedules, heads = unpack(KEYS, 1, 4)
local answer = {}
local function say(number)
  answer[#answer + 1] = number
end

for number, timeline in ipairs(ARGV) do
  local index, values, snapshot, snapshot_values = unpack(KEYS, 4 * number + 1, 4 * number + 4)
  local known, counted = redis.call('HGET', schedules, timeline), -1
  if known and #known == struct.size(SCHEDULE) then
    local _, _, records = unpack_schedule(known, 0)
    counted = records
  end
  say((redis.call('ZSCORE', waiting, timeline) and 1 or 0) + (redis.call('ZSCORE', leased, timeline) and 1 or 0))
  say(counted)
  say(redis.call('ZCARD', index))
  say(redis.call('HLEN', values))
  say(tonumber(field_of(redis.call('HGET', heads, timeline), 'total') or 0))
  say(redis.call('ZCARD', snapshot))
  say(redis.call('HLEN', snapshot_values))
end
return answer
