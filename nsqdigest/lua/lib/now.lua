-- Redis' clock in integer milliseconds, read once per script. A given instant (tests only) is taken instead.
-- 13 digits: exact in Lua's numbers, in '%.14g' and in a score.
local function now_ms(given)
  if given ~= '' then
    return tonumber(given)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
