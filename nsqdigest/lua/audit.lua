-- audit: what the ledgers of a partition say, all at one instant, beside how many timelines there are. Changes nothing.
--
-- KEYS  1 count of timelines; then per route: ledger hash, schedule hash
-- ARGV  none
-- RETURNS { timelines that are counted, then per route: { timelines that are there, field, value, field, value, … } }
-- ERRORS none of its own.

local answer = { tonumber(redis.call('GET', KEYS[1]) or 0) }
for number = 2, #KEYS, 2 do
  answer[#answer + 1] = { redis.call('HLEN', KEYS[number + 1]), unpack(redis.call('HGETALL', KEYS[number])) }
end
return answer
