-- move: a set of records is two keys, index and values; here they change their place.

-- For a key that is there, to where nothing is as a rule; nobody needs what is. RENAME returns a table, which costs a
-- script more than the number of RENAMENX.
local function rename(from, to)
  if redis.call('RENAMENX', from, to) == 0 then
    redis.call('RENAME', from, to)
  end
end

-- RENAME refuses what is not there: the values of a set may be lost, all of them, or an earlier call that was cut off
-- has moved them, and that must stop nobody.
local function move(from, to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('UNLINK', to)
    rename(from, to)
  end
end
