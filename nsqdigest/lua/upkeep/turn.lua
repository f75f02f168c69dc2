-- turn: whose turn it is to look after a partition. Of daemons that do the same upkeep, one has each turn.
--
-- KEYS  1 turns hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 a text that is the same for all daemons that do the same upkeep   3 how long
--       a turn lasts (ms)
-- RETURNS { 1 where the turn is the caller's from here on, else 0 }
-- ERRORS none of its own.
-- EFFECT others with the same text have no turn until this one is over. Where the clock was set back, the turn is over.
--        What nobody asked for within FORGOTTEN is forgotten.
--
-- @include lib/now.lua

local FORGOTTEN = 24 * 3600 * 1000
local turns, now, whose, lasts = KEYS[1], now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local began = tonumber(redis.call('HGET', turns, whose))
if began and began <= now and now < began + lasts then
  return { 0 }
end
redis.call('HDEL', turns, '') -- is never there: it opens the way, for a full Redis refuses HSET as a first write
redis.call('HSET', turns, whose, now)
local known = redis.call('HGETALL', turns)
for place = 1, #known, 2 do
  if (tonumber(known[place + 1]) or 0) < now - FORGOTTEN then
    redis.call('HDEL', turns, known[place])
  end
end
return { 1 }
