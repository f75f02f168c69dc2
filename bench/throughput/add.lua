-- One event into its timeline, one call per event: lanes a and b. Not nsqdigest's own script (that is lane c's).
-- The work is that of the digest script that is best known in this field, command for command: the record with a time to
-- live, the timeline's index and its time to live, a look at both schedules and at the last delivery, and the schedule.
--
-- KEYS  1 record   2 index of the timeline   3 waiting schedule   4 ready schedule   5 last delivery of the timeline
-- ARGV  1 record's id   2 value   3 timestamp (s)   4 time to live (s)   5 timeline's name
-- RETURNS 1 when the timeline was scheduled or moved, 0 when it is ready already

local INCREMENT_S, MINIMUM_S, MAXIMUM_S = 30, 300, 1800
local timestamp = tonumber(ARGV[3])

redis.call('SETEX', KEYS[1], ARGV[4], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])

if redis.call('ZSCORE', KEYS[4], ARGV[5]) then
  return 0
end
local scheduled = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[5]))
local delivered = tonumber(redis.call('GET', KEYS[5])) or timestamp
local due
if scheduled then
  due = math.min(scheduled + INCREMENT_S, delivered + MAXIMUM_S)
else
  due = delivered + MINIMUM_S
end
redis.call('ZADD', KEYS[3], due, ARGV[5])
return 1
