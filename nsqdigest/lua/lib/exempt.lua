-- exempt: retries that quiet hours do not hold back, of digests that were exempt from their policy, or behind which an
-- urgent record waits. A zset of the partition has them: 'ROUTE:TIMELINE' scored by when the next attempt is due. An
-- entry counts only while the timeline waits for just that instant, so nobody has to remove it. The end of its digest
-- does, for many would hide those of other routes; what is over by a day goes when another one comes.
local OVER_MS = 24 * 3600 * 1000

local function route_of(waiting)
  local _, last = string.find(waiting, '}:waiting:', 1, true)
  return string.sub(waiting, last + 1)
end

-- Returns whether the zset can be used. If something else wrote the key, retries wait until the quiet hours end: that
-- is no reason to stop a call.
local function is_usable(exempt)
  return type(redis.pcall('ZCARD', exempt)) == 'number'
end

-- The first ones by route, each with its name, its timeline and when it is due.
local function exempt_retries(exempt, most)
  if not is_usable(exempt) then
    return {}
  end
  local found, flat = {}, redis.call('ZRANGE', exempt, 0, most - 1, 'WITHSCORES')
  for place = 1, #flat, 2 do
    local name = flat[place]
    local between = string.find(name, ':', 1, true) or #name + 1 -- no route's name has one
    local route = string.sub(name, 1, between - 1)
    found[route] = found[route] or {}
    found[route][#found[route] + 1] =
      { name = name, timeline = string.sub(name, between + 1), due = tonumber(flat[place + 1]) }
  end
  return found
end

local function is_exempt_retry(due, waiting, schedules, timeline)
  local packed = redis.call('HGET', schedules, timeline)
  local base, bound = unpack_schedule(packed, 0)
  return base == due and bound == due and redis.call('ZSCORE', waiting, timeline)
end

local function put_exempt(exempt, route, timeline, due, now)
  if not is_usable(exempt) then
    return
  end
  redis.call('ZADD', exempt, string.format('%d', due), route .. ':' .. timeline)
  local over = redis.call('ZRANGEBYSCORE', exempt, '-inf', now - OVER_MS, 'LIMIT', 0, 100)
  if #over > 0 then
    redis.call('ZREM', exempt, unpack(over))
  end
end
