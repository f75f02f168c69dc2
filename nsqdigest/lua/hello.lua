-- hello: what a starting daemon says to the store, and what the store remembers of its layout.
--
-- KEYS  1 layout hash
-- ARGV  1 schema   2 partitions   3 an epoch, kept if there is none yet
-- RETURNS { schema, partitions, epoch } as stored, by this call or an earlier one
-- ERRORS none of its own.

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'partitions', ARGV[2], 'epoch', ARGV[3])
end
return redis.call('HMGET', KEYS[1], 'schema', 'partitions', 'epoch')
