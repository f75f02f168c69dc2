-- burial: a digest whose burial was cut off, while an operator deletes or moves its timeline. Its values may be in the
-- dead store already, its index is not.
--
-- @include lib/head.lua

-- Whether the digest under way, of so many records, is the one that the caller saw on its way ('': none). If not, the
-- caller has named the wrong keys.
local function is_as_seen(head, in_snapshot, burying)
  return in_snapshot == 0 or (field_of(head, 'burying') or '') == burying
end

local function forget_burial(dead, dead_details, dead_values, in_snapshot, burying)
  if in_snapshot > 0 and burying ~= '' then
    redis.call('UNLINK', dead_values)
    redis.call('HDEL', dead_details, burying)
    redis.call('ZREM', dead, burying)
  end
end
