-- Is a larger than b, byte by byte? Lua's own '<' on strings asks the server's locale.
local function larger_bytes(a, b)
  local shorter = math.min(#a, #b)
  for position = 1, shorter do
    local left, right = string.byte(a, position), string.byte(b, position)
    if left ~= right then
      return left > right
    end
  end
  return #a > #b
end
