-- memory: the keys of digests that ended lately, scored like records. A record that may be a repeat and is not newer
-- than its key there is a duplicate. It holds the newest entries and expires after its last digest.
--
-- @include lib/move.lua

local MOST_OF_A_DIGEST = 10000 -- ending a digest is bounded work: of a larger one its newest are remembered
local ENTRIES_PER_CALL = 500 -- unpack has its limit

-- Whether a snapshot that nobody needs any more is fit to be the memory, where there is none.
local function becomes_memory(total, remembered)
  return total <= remembered and total <= MOST_OF_A_DIGEST
end

-- Remembers the keys of a snapshot of `total` records. is_over: it was delivered, so it may become the memory. Of a
-- digest that died the ends (lib/cancel.lua) are not remembered: no receiver saw them, so the next one is news.
-- known: entries of the memory now; remember_ms (as text): '0': not at all; remembered: most entries of the memory.
-- Returns whether the snapshot became the memory, and how many keys are forgotten for want of room.
local function remember(memory, snapshot, total, is_over, known, remember_ms, remembered)
  if remember_ms == '0' or total == 0 then
    if known > 0 and remember_ms ~= '0' then -- a call that was cut off may have made it, and no more
      redis.call('PEXPIRE', memory, remember_ms)
    end
    return false, 0
  end
  local forgotten = 0
  local becomes_it = is_over and known == 0 and becomes_memory(total, remembered)
  if becomes_it then
    rename(snapshot, memory)
  else
    for start = 0, math.min(total, remembered, MOST_OF_A_DIGEST) - 1, ENTRIES_PER_CALL do
      local last = math.min(start + ENTRIES_PER_CALL, MOST_OF_A_DIGEST) - 1
      local page, entries = redis.call('ZRANGE', snapshot, start, last, 'WITHSCORES'), {}
      for place = 1, #page, 2 do
        if is_over or tonumber(page[place + 1]) % 1 == 0 then
          entries[#entries + 1], entries[#entries + 2] = page[place + 1], page[place]
        end
      end
      if #entries > 0 then
        redis.call('ZADD', memory, 'LT', unpack(entries))
      end
    end
    forgotten = total - math.min(total, remembered, MOST_OF_A_DIGEST)
      + redis.call('ZREMRANGEBYRANK', memory, remembered, -1)
  end
  redis.call('PEXPIRE', memory, remember_ms)
  return becomes_it, forgotten
end
