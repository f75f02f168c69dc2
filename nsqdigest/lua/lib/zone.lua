-- zone: the zone of a timeline, for routes whose policy takes it from the events. The head has it, in the part that is
-- the timeline's own: zone, and zoned, the timestamp (µs) of the record that named it.
--
-- @include lib/bytes.lua
-- @include lib/head.lua

-- Returns the head with the zone that a record of this timestamp names, and whether that is another one than before;
-- nil where a newer record named one. Of equal timestamps the larger name stays.
local function with_zone(head, zone, timestamp)
  local present, stamp = field_of(head, 'zone'), tonumber(field_of(head, 'zoned') or nil)
  if stamp and present
    and (timestamp < stamp or (timestamp == stamp and (zone == present or larger_bytes(present, zone)))) then
    return nil, false
  end
  if not present then
    return format(' zone=%s zoned=%.17g', zone, timestamp) .. head, true
  end
  return with_field(with_field(head, 'zone', zone), 'zoned', format('%.17g', timestamp)), present ~= zone
end

-- What of a head tells the zone.
local function zone_fields(head)
  local zone, stamp = field_of(head, 'zone'), field_of(head, 'zoned')
  return zone and stamp and ' zone=' .. zone .. ' zoned=' .. stamp or ''
end
