-- hello: what a daemon says to a partition, and what that remembers of its layout and of the routes that ever filled
-- it.
--
-- KEYS  1 layout hash   2 routes hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 schema   3 partitions   4 an epoch, kept if there is none yet   5… names of
--       routes
-- RETURNS { schema, partitions, epoch } as stored, by this call or an earlier one; where schema and partitions are not
--         those of the call, its routes are not taken up
-- ERRORS none of its own.
-- EFFECT where there is no layout yet, this call's stands from here on: other daemons have to share it.
--
-- @include lib/now.lua

local PER_CALL = 500 -- of pairs: unpack has its limit
local layout, routes, now = KEYS[1], KEYS[2], now_ms(ARGV[1])
redis.call('HDEL', layout, '') -- is never there: it opens the way, for a full Redis refuses HSET as a first write
if redis.call('EXISTS', layout) == 0 then
  redis.call('HSET', layout, 'schema', ARGV[2], 'partitions', ARGV[3], 'epoch', ARGV[4])
end
local stored = redis.call('HMGET', layout, 'schema', 'partitions', 'epoch')
if stored[1] == ARGV[2] and stored[2] == ARGV[3] then
  for first = 5, #ARGV, PER_CALL do
    local pairs_to_set = {}
    for number = first, math.min(first + PER_CALL - 1, #ARGV) do
      pairs_to_set[#pairs_to_set + 1], pairs_to_set[#pairs_to_set + 2] = ARGV[number], now
    end
    redis.call('HSET', routes, unpack(pairs_to_set))
  end
end
return stored
