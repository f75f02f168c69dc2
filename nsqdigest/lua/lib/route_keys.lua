-- route_keys: the keys of a script on many timelines of several routes: per route the first seven of timeline_keys.lua,
-- then count of timelines and agenda zset, then per timeline those of its own that the script names, then others.
local KEYS_OF_ROUTE = 7
local REVIVED = 1 -- the name of a revived digest's timeline begins with this byte

-- Returns waiting, leased, tokens, schedules, heads, losses, ledger.
local function keys_of_route(number)
  return unpack(KEYS, KEYS_OF_ROUTE * (number - 1) + 1, KEYS_OF_ROUTE * number)
end

-- Raises an error that names the key if it has another type.
local function look_at(command, key)
  local answer = redis.pcall(command, key)
  if type(answer) == 'table' then
    error(answer.err .. ': ' .. key, 0)
  end
end

-- Looks at the keys that timelines share: one of another type is an error here, before the first write.
local function look_at_shared(routes, agenda)
  look_at('ZCARD', agenda)
  for number, route in ipairs(routes) do
    if #route.names > 0 then
      local waiting, leased, _, _, _, losses, ledger = keys_of_route(number)
      look_at('ZCARD', waiting)
      look_at('ZCARD', leased)
      look_at('HLEN', losses)
      look_at('HLEN', ledger)
    end
  end
end
