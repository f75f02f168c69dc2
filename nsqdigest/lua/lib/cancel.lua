-- cancel: a record that ends the record of its key ("resolved").
--
-- The score of an end is half a microsecond newer than its timestamp says. So of equal timestamps the end is the newer
-- record, and every set that has the score (the open set, the snapshot, the memory of what was delivered) says whether
-- its record is an end. What the receiver saw last of a key is the newer one of snapshot and memory.
--
-- Per timeline, `ends` has one entry for a key whose newest event is an end, as far as known. Its score is that of the
-- end, and its first letter says what is known beside it:
--   'e'  settled: the receiver saw an end last, or never saw what has ended; or ends of this route are silent
--   'a'  alone: the end waits in the open set, and no record that the receiver saw is known
--   'o'  open: the receiver may have seen a record that has not ended, so the next end is news. An end waits, or a
--        newer record took its place, or what was shown since was forgotten
-- A newer record of the key takes the entries 'e' and 'a' away. No capacity counts these entries: the newest stay, and
-- they expire.
--
-- What becomes of the records of a key does not depend on the order in which they come. The newest one stays. If it is
-- an end,
--   and the receiver saw an end last: it goes, with what came in between;
--   and the receiver saw a record that has not ended: the end stays, for it is news;
--   and no record that the receiver saw is known, and another record of the key waits: both go;
--   and nothing is known of the key: the end stays, for what it ends may have been shown long ago.
-- An end goes only if it is known to be no news: what was forgotten makes one too many, never one too few. A silent
-- end never stays.
--
-- @include lib/records.lua

local END = '.5' -- what the score of an end has behind its digits
local SETTLED, ALONE, OPEN = 'e', 'a', 'o'

local function is_end(score)
  return score % 1 ~= 0
end

-- Returns the score of the newest record of a key that a digest has shown, or is about to; nil: none is known.
local function newest_shown(snapshot, memory, key)
  local under_way, remembered = redis.call('ZSCORE', snapshot, key), redis.call('ZSCORE', memory, key)
  under_way, remembered = tonumber(under_way or nil), tonumber(remembered or nil)
  return under_way and remembered and math.min(under_way, remembered) or under_way or remembered
end

-- Returns the entry of a key among the ends, as score and letter; nil: there is none, or a digest has shown something
-- newer. A call that was cut off may have left two.
local function known_end(ends, key, shown)
  local scores, newest, letter = redis.call('ZMSCORE', ends, OPEN .. key, ALONE .. key, SETTLED .. key), nil, nil
  for place, each in ipairs({ OPEN, ALONE, SETTLED }) do
    local score = tonumber(scores[place] or nil)
    if score and not (newest and newest <= score) and not (shown and shown <= score) then
      newest, letter = score, each
    end
  end
  return newest, letter
end

local function forget_end(ends, key)
  redis.call('ZREM', ends, ALONE .. key, SETTLED .. key)
end

local function write_end(ends, key, score, letter)
  redis.call('ZADD', ends, score, letter .. key)
  for _, other in ipairs({ OPEN, ALONE, SETTLED }) do
    if other ~= letter then
      redis.call('ZREM', ends, other .. key)
    end
  end
end

local function take_out(index, values, key)
  redis.call('ZREM', index, key)
  redis.call('HDEL', values, key)
  return CANCELLED, false, 1
end

-- A record that is no end. `of` is what is known of its key. Returns as meet_ends does.
local function meet_record(index, values, ends, key, of)
  if not of.last_end or of.own < of.last_end then
    if not of.last_end and not of.shown and of.open and is_end(of.open) then
      write_end(ends, key, of.open, OPEN) -- the end waits, and what it ends was forgotten
    end
    return nil, false, 0
  end
  if not of.open then
    return CANCELLED, true, 0
  end
  if of.is_open_for_receiver or not is_end(of.open) then
    return SUPERSEDED, true, 0
  end
  write_end(ends, key, of.last_end, SETTLED)
  return take_out(index, values, key) -- the end waits there, and ended what nobody has seen
end

-- An end that meets no record of its key in the open set. Returns its letter; whether it came before and went.
local function lone_end(of, is_silent)
  local is_same = of.own == of.last_end
  if is_silent then
    return SETTLED, is_same
  elseif of.is_open_for_receiver then
    return OPEN, false
  elseif of.shown or of.letter == SETTLED then
    return SETTLED, is_same
  end
  return ALONE, false
end

-- An end, if no newer record of its key is known. It is written down before what it ends goes.
local function meet_end(index, values, ends, key, score, of, is_silent)
  local open, letter, was_there = of.open, nil, false
  if open and is_end(open) then -- waits there, whatever is known of it
    letter = (of.letter == OPEN or not of.letter) and OPEN or ALONE
  elseif open then
    letter = of.is_open_for_receiver and not is_silent and OPEN or SETTLED
  else
    letter, was_there = lone_end(of, is_silent)
  end
  write_end(ends, key, score, letter)
  if letter ~= SETTLED then
    return nil, false, 0
  elseif open then
    return take_out(index, values, key)
  end
  if of.own == of.last_end then
    redis.call('HDEL', values, key) -- a value without a record: a call was cut off that took the record out
  end
  return was_there and REPEATED or CANCELLED, false, 0
end

-- What becomes of a record of a route whose records may end others; `score` as it is filed. Returns its fate (nil: it
-- is filed like any other); whether it is the newcomer that lost; how many records left the open set for it; and
-- whether the entry of its key goes if it is filed.
local function meet_ends(index, values, snapshot, memory, ends, key, score, how)
  local shown = newest_shown(snapshot, memory, key)
  local last_end, letter = known_end(ends, key, shown)
  local of = {
    own = tonumber(score), shown = shown, last_end = last_end, letter = letter,
    open = tonumber(redis.call('ZSCORE', index, key) or nil),
  }
  if letter == ALONE and not of.open then -- it waits no longer, and what was shown since was forgotten
    write_end(ends, key, last_end, OPEN)
    of.letter = OPEN
  end
  of.is_open_for_receiver = shown and not is_end(shown) or not shown and of.letter == OPEN
  if shown and of.own >= shown then
    return how.possible_repeat and DUPLICATE or SUPERSEDED, true, 0
  end
  if not how.is_end then
    local fate, is_loser, gone = meet_record(index, values, ends, key, of)
    return fate, is_loser, gone, not fate and last_end
  end
  if (last_end and of.own > last_end) or (of.open and of.open < of.own) then
    return SUPERSEDED, true, 0
  end
  return meet_end(index, values, ends, key, score, of, how.is_silent)
end

-- After a call on a timeline: the newest entries stay, and what was shown and has ended is known for so long (ms, as
-- text) from now on.
local function remember_ends(ends, memory, remember_ms, most)
  redis.call('ZREMRANGEBYRANK', ends, most, -1)
  redis.call('PEXPIRE', ends, remember_ms)
  redis.call('PEXPIRE', memory, remember_ms)
end
