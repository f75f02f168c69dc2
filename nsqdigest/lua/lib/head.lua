-- head: what the store knows of a timeline beside its records and its schedule, as one line of text in the route's heads
-- hash: ' FIELD=VALUE FIELD=VALUE …'. A field that this version does not know is kept.
--   of the timeline   iteration, closed (the id that ended last)
--   of the digest under way, from ' id=' on: id, opened (ms), total (records), superseded, capacity (records lost),
--   next (ms), since (ms), attempts, tries. attempts and opened are of this id; since and tries decide when there have been enough: a merge
--   keeps them, a revival begins them anew. Both count posts that ended.
--   merging: a merge was cut off; how many records the ledger has of the snapshot. burying: the digest is on its way to
--   the dead store; its records may be here or there, so open does not send it.

local function field_of(head, name)
  return head and string.match(head, ' ' .. name .. '=(%S+)') or nil
end

-- The head with a field set; a new one is put last.
local function with_field(head, name, value)
  local first, last = string.find(head, ' ' .. name .. '=%S+')
  local field = ' ' .. name .. '=' .. value
  return first and string.sub(head, 1, first - 1) .. field .. string.sub(head, last + 1) or head .. field
end

-- Numbers of Redis' are exact in '%.0f', instants are not in Lua's own format.
local function with_number(head, name, number)
  return with_field(head, name, string.format('%.0f', number))
end

-- What of the head is the timeline's own. Of a head that was never written: nothing.
local function of_timeline(head)
  local first = head and string.find(head, ' id=', 1, true)
  return first and string.sub(head, 1, first - 1) or head or ''
end

-- The head when its digest has ended.
local function ended(head, id)
  return with_field(of_timeline(head), 'closed', id)
end
