-- turn: whose turn it is to look after a partition. Of daemons that do the same upkeep, one has each turn.
--
-- KEYS  1 turns hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 a text that is the same for all daemons that do the same upkeep   3 how long
--       a turn lasts (ms)
-- RETURNS { 1 where the turn is the caller's from here on, else 0; now; how far ahead of now the latest turn began
--         (ms): Redis' clock went back by at least so much. Only a caller that has the turn learns it; 0: no turn did }
-- ERRORS none of its own.
-- EFFECT others with the same text have no turn until this one is over. Where the clock was set back, the turn is over.
--        Turns that began ahead of now, or more than FORGOTTEN before it, are forgotten.
--
-- @include lib/now.lua

local FORGOTTEN, FURTHEST = 24 * 3600 * 1000, 2 ^ 53
local turns, now, whose, lasts = KEYS[1], now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local began = tonumber(redis.call('HGET', turns, whose))
if began and began <= now and now < began + lasts then
  return { 0, now, 0 }
end
redis.call('HDEL', turns, '') -- is never there: it opens the way, for a full Redis refuses HSET as a first write
local ahead, known = 0, redis.call('HGETALL', turns)
redis.call('HSET', turns, whose, now)
for place = 1, #known, 2 do
  local instant = tonumber(known[place + 1]) or 0
  if instant > now and instant < FURTHEST then
    ahead = math.max(ahead, instant - now)
  end
  if known[place] ~= whose and not (instant <= now and instant >= now - FORGOTTEN) then
    redis.call('HDEL', turns, known[place])
  end
end
return { 1, now, ahead }
