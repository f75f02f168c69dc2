-- cancel: a record that ends the record of its key ("resolved"). Per timeline, `ends` has of each key its newest end
-- ('e' .. KEY) and the newest one that was filed as a record, for the receiver to know ('t' .. KEY), scored like
-- records. It is no record, and no capacity counts it; it holds the newest entries and expires some time after the last
-- end came.
--
-- What becomes of the records of a key does not depend on the order in which they come. The newest one stays, and of an
-- end and another record with equal timestamps the end counts as the newer. Where the newest is an end,
--   and the digest that showed the key last showed no end: it stays as a record, for it is news;
--   and none has shown the key, and another record of it came: all of them go, the end with them;
--   and nothing else is known of the key: it stays, for what it ends may have been shown long ago;
--   and what was shown last is an end: it tells nothing, and goes, with what came in between.
-- A silent end never stays.
--
-- @include lib/records.lua

-- Returns the score of the newest record of a key that a digest has shown, or is about to; nil: none is known.
local function newest_shown(snapshot, memory, key)
  local under_way, remembered = redis.call('ZSCORE', snapshot, key), redis.call('ZSCORE', memory, key)
  under_way, remembered = tonumber(under_way or nil), tonumber(remembered or nil)
  return under_way and remembered and math.min(under_way, remembered) or under_way or remembered
end

local function take_out(index, values, key)
  redis.call('ZREM', index, key)
  redis.call('HDEL', values, key)
  return CANCELLED, false, 1
end

-- A record that is no end. `of` is what is known of its key. Returns as meet_ends does.
local function meet_end(index, values, key, of)
  if not of.last_end or of.own < of.last_end then
    return nil, false, 0
  end
  if not of.open then
    return CANCELLED, true, 0
  end
  if of.open == of.told and not of.is_open_for_receiver then
    return take_out(index, values, key) -- the end waits there, and ended what nobody has seen
  end
  return SUPERSEDED, true, 0
end

-- An end that meets no record of its key in the open set.
local function lone_end(of, is_silent, was_cut_off)
  -- One that was to be filed may have been written down, and no more.
  local is_known = of.own == of.last_end and (of.own ~= of.told or not was_cut_off())
  if is_known and (is_silent or not of.is_open_for_receiver) then
    return REPEATED, false, 0
  end
  local tells_nothing = not of.is_open_for_receiver and (of.shown or (of.last_end and of.own ~= of.last_end))
  if is_silent or tells_nothing then
    return CANCELLED, false, 0
  end
  return nil, false, 0
end

-- An end, where no newer one is known. It is written down before what it ends goes.
local function end_record(index, values, ends, key, score, value, of, is_silent, was_cut_off)
  local own, open = of.own, of.open
  if open and open < own then
    redis.call('ZADD', ends, 'LT', score, 'e' .. key)
    return SUPERSEDED, true, 0 -- a newer record of its key stands
  end
  local is_filed, fate, is_loser, gone = false, nil, false, 0
  if open and (open == of.told or (open == own and not is_silent and redis.call('HGET', values, key) == value)) then
    is_filed = true -- it waits there, whatever is known of it
  elseif open and of.is_open_for_receiver and not is_silent then
    is_filed, fate = true, SUPERSEDED
  elseif open then
    fate = CANCELLED
  else
    if own == of.last_end then
      redis.call('HDEL', values, key) -- a value without a record: a call was cut off that took the record out
    end
    fate, is_loser, gone = lone_end(of, is_silent, was_cut_off)
    is_filed = not fate
  end
  if is_filed then
    redis.call('ZADD', ends, 'LT', score, 'e' .. key, score, 't' .. key)
  elseif own ~= of.last_end then
    redis.call('ZADD', ends, 'LT', score, 'e' .. key)
  end
  if fate == SUPERSEDED then
    redis.call('HSET', values, key, value)
    redis.call('ZADD', index, score, key)
  elseif open and fate == CANCELLED then
    return take_out(index, values, key)
  end
  return fate, is_loser, gone
end

-- What becomes of a record of a route whose records may end others. `was_cut_off`: returns whether a call was, which
-- may have written no more than the end. Returns its fate (nil: it is filed like any other); whether it is the newcomer
-- that lost; and how many records left the open set for it.
local function meet_ends(index, values, snapshot, memory, ends, key, score, value, how, was_cut_off)
  local scores = redis.call('ZMSCORE', ends, 'e' .. key, 't' .. key)
  local of = {
    own = tonumber(score), shown = newest_shown(snapshot, memory, key), last_end = tonumber(scores[1] or nil),
    told = tonumber(scores[2] or nil), open = tonumber(redis.call('ZSCORE', index, key) or nil),
  }
  of.is_open_for_receiver = of.shown and of.shown ~= of.told
  local ends_what_was_shown = how.is_end and of.own == of.shown and of.is_open_for_receiver
  if of.shown and of.own >= of.shown and not ends_what_was_shown then
    return how.possible_repeat and DUPLICATE or SUPERSEDED, true, 0
  end
  if not how.is_end then
    return meet_end(index, values, key, of)
  end
  if of.last_end and of.own > of.last_end then
    return SUPERSEDED, true, 0
  end
  return end_record(index, values, ends, key, score, value, of, how.is_silent, was_cut_off)
end

-- After ends were written down: the newest entries stay, for so long (ms, as text) after the last one.
local function remember_ends(ends, remember_ms, most)
  redis.call('ZREMRANGEBYRANK', ends, most, -1)
  redis.call('PEXPIRE', ends, remember_ms)
end
