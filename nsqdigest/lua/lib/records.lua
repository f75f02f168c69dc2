-- What becomes of a record that meets a set: one of these. A score is minus the record's timestamp, so that the newest
-- stands first; of equal timestamps the larger value wins a key, and the smaller key counts as the newer.
--
-- @include lib/bytes.lua

local KEPT, SUPERSEDED, OVER_CAPACITY, OVER_TIMELINES, DUPLICATE, REPEATED, MUTED, CANCELLED = 1, 2, 3, 4, 5, 6, 7, 8

-- Here as everywhere a value is written before its place in the index: a record that stands there has its value,
-- wherever the script was cut off.

-- A record whose key is there already: the newer stays. An exact copy changes nothing. (One whose value alone is there,
-- left by a call that was cut off, is new.) Returns also whether it was the newcomer that lost.
local function contend(index, values, key, score, value)
  local own_score, present_score = tonumber(score), tonumber(redis.call('ZSCORE', index, key) or nil)
  if not present_score then
    redis.call('HSET', values, key, value)
    redis.call('ZADD', index, score, key)
    return KEPT
  end
  local wins = own_score < present_score
  if own_score == present_score then
    local present = redis.call('HGET', values, key)
    if present == value then
      return REPEATED
    end
    wins = not present or larger_bytes(value, present)
  end
  if wins then
    redis.call('HSET', values, key, value)
    redis.call('ZADD', index, score, key)
  end
  return SUPERSEDED, not wins
end

-- A full set, and a key that is not in it. A newcomer older than all that is kept is refused before any write (that
-- is what makes a replay harmless), any other takes the place of the oldest. Returns also whether it was refused.
local function into_full_set(index, values, key, score, value)
  local oldest = redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')
  local own_score, oldest_score = tonumber(score), tonumber(oldest[2])
  local fits = own_score < oldest_score or (own_score == oldest_score and larger_bytes(oldest[1], key))
  if fits then
    redis.call('HSET', values, key, value)
    redis.call('ZADD', index, score, key)
    redis.call('ZREM', index, oldest[1])
    redis.call('HDEL', values, oldest[1])
  end
  return OVER_CAPACITY, not fits
end

-- Shown already, or about to be: in the snapshot under way or in the memory of what was delivered.
local function is_duplicate(snapshot, memory, key, score)
  local shown = redis.call('ZSCORE', snapshot, key)
  if shown and tonumber(score) >= tonumber(shown) then
    return true
  end
  shown = redis.call('ZSCORE', memory, key)
  return shown and tonumber(score) >= tonumber(shown)
end
