-- head: what the store knows of a timeline beside its records and its schedule, as one line of text in the route's
-- heads hash: ' FIELD=VALUE FIELD=VALUE …'. A field that this version does not know is kept.
--   of the timeline   zone, zoned (where its policy takes the zone from the events: lib/zone.lua), iteration,
--   closed (the id that ended last)
--   of the digest under way, from ' id=' on: id, opened (ms), total (records), superseded, capacity (records lost),
--   next (ms), since (ms), attempts, tries. attempts and opened are of this id; since and tries decide when there have
--   been enough: a merge keeps them, a revival begins them anew. Both count posts that ended.
--   cancelled: records that others ended since the digest before; it is there where there were any.
--   urgent=1: an urgent record came while it was under way, so the next digest follows at once.
--   merging: a merge was cut off; how many records the ledger has of the snapshot. burying: the digest is on its way to
--   the dead store; its records may be here or there, so open does not send it.

-- Texts are looked for, not patterns: Lua tries a pattern at every character.
local find, match, substring, format, byte = string.find, string.match, string.sub, string.format, string.byte
local BLANK = byte(' ')

local function field_of(head, name)
  if not head or head == '' then
    return nil
  end
  local _, last = find(head, ' ' .. name .. '=', 1, true)
  return last and match(head, '^%S+', last + 1)
end

-- Whether a field, as it stands there (' id='), has this value.
local function has_field(head, field, value)
  local _, last = find(head, field, 1, true)
  return last and find(head, value, last + 1, true) == last + 1
    and (#head == last + #value or byte(head, last + #value + 1) == BLANK)
end

-- The head with a field set; a new one is put last.
local function with_field(head, name, value)
  local field = ' ' .. name .. '='
  local first, last = find(head, field, 1, true)
  if not first then
    return head .. field .. value
  end
  local behind = find(head, ' ', last + 1, true) or #head + 1
  return substring(head, 1, last) .. value .. substring(head, behind)
end

local function with_number(head, name, number)
  return with_field(head, name, format('%d', number))
end

-- What of the head is the timeline's own. A head that was never written is ''.
local function of_timeline(head)
  local first = find(head, ' id=', 1, true)
  return first and substring(head, 1, first - 1) or head
end

-- The head when its digest has ended.
local function ended(head, id)
  return with_field(of_timeline(head), 'closed', id)
end
