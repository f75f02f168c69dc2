-- check_in: a daemon makes itself known to those of its namespace, or says goodbye, and learns of the others.
--
-- KEYS  1 daemons hash
-- ARGV  1 now (ms, '' = Redis' clock)   2 id of the daemon   3 what it tells of itself ('': it ends)
--       4 how long it is known without checking in again (ms)
-- RETURNS { now, id, when it was seen last (ms), what it tells, id, … }: all that are known, the caller among them
-- ERRORS none of its own.
-- EFFECT the caller's field is 'SEEN TEXT'. Those that were not seen for so long are forgotten, and the whole hash
--        expires with the last of them. What no daemon wrote is left out and stays. Where MOST are known a further one
--        is not written.
--
-- @include lib/now.lua

local MOST = 1000
local daemons, now, id, text, known_for = KEYS[1], now_ms(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

-- Returns when a daemon was seen, and what it told; nothing where something else wrote it.
local function read(field)
  local seen, told = string.match(field, '^(%d+) (.*)$')
  return tonumber(seen), told
end

local count, over, answer = redis.call('HLEN', daemons), { '' }, { now } -- '' is never there
local all = count <= MOST and redis.call('HGETALL', daemons) or {}
for place = 1, #all, 2 do
  local seen, told = read(all[place + 1])
  if seen and (all[place] == id or math.abs(now - seen) >= known_for) then -- a clock that was ahead wrote it, perhaps
    over[#over + 1] = all[place]
  elseif seen then
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = all[place], seen, told
  end
end
redis.call('HDEL', daemons, unpack(over)) -- first: a full Redis refuses HSET as a first write
if text ~= '' and count - #over + 1 < MOST then
  redis.call('HSET', daemons, id, string.format('%d %s', now, text))
  redis.call('PEXPIRE', daemons, string.format('%d', known_for))
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = id, now, text
end
return answer
