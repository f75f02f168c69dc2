-- release: timelines that a claim took whose answer nobody heard wait again, due when they were due before.
--
-- KEYS  per route: waiting zset, leased zset, tokens hash, schedule hash; then the agenda zset
-- ARGV  1 token of that claim
-- RETURNS { how many came back }
-- ERRORS none of its own. Where more timelines are leased than claims take, it leaves them to maintenance.
--
-- @include lib/schedule.lua

local LEASED_AT_MOST = 5000
local agenda, token, returned = KEYS[#KEYS], ARGV[1], 0
for route = 1, (#KEYS - 1) / 4 do
  local waiting, leased, tokens, schedules = unpack(KEYS, 4 * route - 3, 4 * route)
  local owners = redis.call('HLEN', tokens) <= LEASED_AT_MOST and redis.call('HGETALL', tokens) or {}
  for position = 1, #owners, 2 do
    if owners[position + 1] == token then
      local timeline = owners[position]
      local known = redis.call('HGET', schedules, timeline)
      if known then
        local base, bound, records = struct.unpack(SCHEDULE, known)
        begin_writes(agenda)
        wait_again(waiting, schedules, agenda, timeline, base, bound, 0, records)
        end_lease(leased, tokens, timeline)
        returned = returned + 1
      end
    end
  end
end
return { returned }
