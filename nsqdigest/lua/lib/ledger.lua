-- The ledger of a route. A script counts all that it changed in one write, so that
-- added = open + snapshots + delivered + superseded + dropped:* + buried + deleted holds at every moment. A script may
-- stop between any two writes. So before it moves records it puts down in which field they will be counted, and the
-- write that counts takes that back: 'unfinished:FIELD' is the number of calls that never came to count. While one of
-- them is not 0 the ledger is not exact, and mend.lua recounts.
local function begin_count(ledger, field)
  redis.call('HINCRBY', ledger, 'unfinished:' .. field, 1)
end

-- `changes` is a list of field, difference, field, difference, … without any field twice. Returns the first field's new
-- value.
local function end_count(ledger, field, changes)
  local names, pairs_to_set = { 'unfinished:' .. field }, {}
  local differences = { -1 }
  for place = 1, #changes, 2 do
    if place == 1 or changes[place + 1] ~= 0 then
      names[#names + 1], differences[#differences + 1] = changes[place], changes[place + 1]
    end
  end
  local present = redis.call('HMGET', ledger, unpack(names))
  for number, name in ipairs(names) do
    pairs_to_set[2 * number - 1] = name
    pairs_to_set[2 * number] = string.format('%d', (present[number] or 0) + differences[number])
  end
  redis.call('HSET', ledger, unpack(pairs_to_set))
  return (present[2] or 0) + differences[2]
end
