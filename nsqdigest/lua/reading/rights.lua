-- rights: which of these commands the user who asks may not send. Runs none of them, and touches no key.
--
-- KEYS  none: a user without a right to the keys is to get an answer, too
-- ARGV  1 the name of a key   2… commands, their words apart by blanks, @ for that key
-- RETURNS { 1, each of ARGV that is refused, … }, or { 0 } where Redis cannot tell (before 7.0)
-- ERRORS none of its own.
-- EFFECT none.

if redis.acl_check_cmd == nil then
  return { 0 }
end
local answer = { 1 }
for number = 2, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[number], '%S+') do
    words[#words + 1] = word == '@' and ARGV[1] or word
  end
  if not redis.acl_check_cmd(unpack(words)) then
    answer[#answer + 1] = ARGV[number]
  end
end
return answer
