-- move: a set of records is two keys, index and values; here they change their place.
--
-- RENAME refuses what is not there: the values of a set may be lost, all of them, or an earlier call that was cut off
-- has moved them, and that must stop nobody.
local function move(from, to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('UNLINK', to)
    redis.call('RENAME', from, to)
  end
end
