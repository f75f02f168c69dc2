-- The head of a timeline: its iteration, the id closed last, and of the digest under way
--   id, opened (ms), total, first, last (µs), superseded, capacity (records lost), next (ms), attempts: told to its receiver;
--   since (ms), tries: what decides when there have been enough. They differ from opened and attempts where a digest took
--   another's place (merge: since and tries go on) or came back from the dead (revive: they begin again).
--   attempts and tries count posts that ended; fail counts them, not open.
local function end_digest(head, id)
  redis.call('HDEL', head, 'id', 'opened', 'total', 'first', 'last', 'superseded', 'capacity', 'next', 'attempts', 'since', 'tries')
  redis.call('HSET', head, 'closed', id)
end

-- What of it is read off its records. Answers how many there are. Scores are minus the timestamps: the newest stands first.
local function describe(head, snapshot)
  local total = redis.call('ZCARD', snapshot)
  local newest = redis.call('ZRANGE', snapshot, 0, 0, 'WITHSCORES')
  local oldest = redis.call('ZRANGE', snapshot, -1, -1, 'WITHSCORES')
  redis.call('HSET', head, 'total', total, 'first', -oldest[2], 'last', -newest[2])
  return total
end
