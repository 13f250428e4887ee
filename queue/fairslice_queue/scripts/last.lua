-- Read the log's last position.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {}

local refused = refusal(true)
if refused then
  return answer(refused)
end
return answer({ sequence = last_position() })
