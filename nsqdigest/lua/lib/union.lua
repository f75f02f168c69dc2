-- union: one set of records taken into another. A set is two keys, index and values.
--
-- @include lib/records.lua

local PER_CALL = 500 -- of pairs: unpack has its limit

-- All records of one set are copied into another, which may have some of their keys. Returns how many met their key
-- there (of each such two one is gone), and how many of these were the same record, which an earlier call that was cut
-- off copied.
local function unite(index, values, into_index, into_values)
  local met, copied_before = 0, 0
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
        if value and contend(into_index, into_values, key, score, value) == REPEATED then
          copied_before = copied_before + 1
        end
      else
        scores[#scores + 1], scores[#scores + 2] = score, key
        if value then
          texts[#texts + 1], texts[#texts + 2] = key, value
        end
      end
    end
    if #texts > 0 then
      redis.call('HSET', into_values, unpack(texts))
    end
    if #scores > 0 then
      redis.call('ZADD', into_index, unpack(scores))
    end
  end
  return met, copied_before
end

-- Copies values back to a set whose values were moved by a call that was cut off. A record that came since has its own.
local function take_back_values(index, values, moved)
  for start = 0, redis.call('ZCARD', index) - 1, PER_CALL do
    local keys, lacking, texts = redis.call('ZRANGE', index, start, start + PER_CALL - 1), {}, {}
    for number, value in ipairs(redis.call('HMGET', values, unpack(keys))) do
      if not value then
        lacking[#lacking + 1] = keys[number]
      end
    end
    local found = #lacking > 0 and redis.call('HMGET', moved, unpack(lacking)) or {}
    for number, value in ipairs(found) do
      if value then
        texts[#texts + 1], texts[#texts + 2] = lacking[number], value
      end
    end
    if #texts > 0 then
      redis.call('HSET', values, unpack(texts))
    end
  end
end

-- The newest stay, and the oldest go, so many at most (nil: all that are over the capacity). Returns how many went.
local function trim(index, values, capacity, most)
  local over, gone = redis.call('ZCARD', index) - capacity, 0
  over = math.min(over, most or over)
  while gone < over do
    local oldest = redis.call('ZRANGE', index, -math.min(PER_CALL, over - gone), -1)
    redis.call('ZREM', index, unpack(oldest))
    redis.call('HDEL', values, unpack(oldest))
    gone = gone + #oldest
  end
  return gone
end
