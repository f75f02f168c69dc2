-- audit: what the ledgers of a partition say, all at one instant, beside how many timelines there are. Changes nothing.
--
-- KEYS  1 count of timelines; then per route: ledger hash, schedule hash
-- ARGV  none
-- RETURNS { timelines that are counted, then per route: { timelines that are there, field, value, field, value, … } }
-- ERRORS none of its own.

local timeline_count = KEYS[1]
local answer = { tonumber(redis.call('GET', timeline_count) or 0) }
for number = 2, #KEYS, 2 do
  local ledger, schedules = KEYS[number], KEYS[number + 1]
  answer[#answer + 1] = { redis.call('HLEN', schedules), unpack(redis.call('HGETALL', ledger)) }
end
return answer
