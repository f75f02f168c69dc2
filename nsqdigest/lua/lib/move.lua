-- A set of records is two keys, index and values; here they change their place. (unite: with lib/bytes.lua and lib/records.lua.)
local PER_CALL = 500 -- of pairs: unpack has its limit

-- RENAME refuses what is not there: the values of a set may be lost, all of them, and that must stop nobody.
local function move(from, to)
  redis.call('UNLINK', to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
  end
end

-- All records of one set go into another, which may have some of their keys. Answers how many met their key there: of
-- each such two one is gone.
local function unite(index, values, into_index, into_values)
  local met = 0
  for start = 0, redis.call('ZCARD', index) - 1, PER_CALL do
    local page = redis.call('ZRANGE', index, start, start + PER_CALL - 1, 'WITHSCORES')
    local keys, scores, texts = {}, {}, {}
    for place = 1, #page, 2 do
      keys[#keys + 1] = page[place]
    end
    local own = redis.call('HMGET', values, unpack(keys))
    local present = redis.call('ZMSCORE', into_index, unpack(keys))
    for number, key in ipairs(keys) do
      local score, value = page[2 * number], own[number]
      if present[number] then
        met = met + 1
        if value then
          contend(into_index, into_values, key, score, value)
        end
      else
        scores[#scores + 1], scores[#scores + 2] = score, key
        if value then
          texts[#texts + 1], texts[#texts + 2] = key, value
        end
      end
    end
    if #scores > 0 then
      redis.call('ZADD', into_index, unpack(scores))
    end
    if #texts > 0 then
      redis.call('HSET', into_values, unpack(texts))
    end
  end
  redis.call('UNLINK', index, values)
  return met
end

-- The newest stay. Answers how many went.
local function trim(index, values, capacity)
  local gone = 0
  while true do
    local over = redis.call('ZRANGE', index, capacity, capacity + PER_CALL - 1)
    if #over == 0 then
      return gone
    end
    redis.call('ZREM', index, unpack(over))
    redis.call('HDEL', values, unpack(over))
    gone = gone + #over
  end
end
