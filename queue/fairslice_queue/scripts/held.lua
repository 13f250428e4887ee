-- Read a team's holdings.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {team}
-- Answers  {}, then field and amount in turn

local refused = refusal(true)
if refused then
  return answer(refused)
end
local reply = answer({})
for _, item in ipairs(call('HGETALL', prefix .. 'held:' .. request.team)) do
  reply[#reply + 1] = item
end
return reply
