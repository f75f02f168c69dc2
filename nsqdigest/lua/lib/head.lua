-- The head of a timeline: its iteration, the id closed last, and of the digest under way
--   id, opened (ms), total, first, last (µs), superseded, capacity (records lost), next (ms), attempts: told to its receiver;
--   since (ms), tries: what decides when there have been enough. They differ from opened and attempts where a digest took
--   another's place (merge: since and tries go on) or came back from the dead (revive: they begin again).
--   attempts and tries count posts that ended; fail counts them, not open.
--   burying: set while it is on its way to the dead store. Its records may be here or there, so open does not send it.
local function end_digest(head, id)
  redis.call('HSET', head, 'closed', id)
  redis.call('HDEL', head, 'id', 'opened', 'total', 'first', 'last', 'superseded', 'capacity', 'next', 'attempts', 'since', 'tries',
    'burying')
end

-- What of it is read off its records, as fields of the head. Scores are minus the timestamps: the newest stands first.
local function described(records)
  local newest = redis.call('ZRANGE', records, 0, 0, 'WITHSCORES')
  local oldest = redis.call('ZRANGE', records, -1, -1, 'WITHSCORES')
  return 'total', redis.call('ZCARD', records), 'first', -oldest[2], 'last', -newest[2]
end
