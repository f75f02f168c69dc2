-- audit: what the ledgers of a partition say, all at one instant, beside how many timelines there are and where.
-- Changes nothing.
--
-- KEYS  1 count of timelines; then per route: ledger hash, schedule hash, waiting zset, leased zset
-- ARGV  none
-- RETURNS { timelines that are counted, then per route: { timelines that are known, that wait, that are leased, field,
--         value, field, value, … } }
-- ERRORS none of its own.
-- EFFECT none.

local timeline_count = KEYS[1]
local answer = { tonumber(redis.call('GET', timeline_count) or 0) }
for number = 2, #KEYS, 4 do
  local ledger, schedules, waiting, leased = unpack(KEYS, number, number + 3)
  answer[#answer + 1] = { redis.call('HLEN', schedules), redis.call('ZCARD', waiting), redis.call('ZCARD', leased),
    unpack(redis.call('HGETALL', ledger)) }
end
return answer
