-- The ledger of a route: every script counts what it changed, in the same transaction, so that
-- added = open + snapshots + delivered + superseded + dropped:* + buried + deleted holds at every moment.
local function count(ledger, field, by)
  if by ~= 0 then
    redis.call('HINCRBY', ledger, field, by)
  end
end
