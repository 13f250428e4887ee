-- End what was tentative, or kept for a successor, for too long.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, now, most}
-- Answers  how many were ended, at most `most`

local refused = refusal(true)
if refused then
  return answer(refused)
end
local due = call('ZRANGEBYSCORE', prefix .. 'deadlines', '-inf', request.now, 'LIMIT', 0, request.most)
local teams = {}
for _, id in ipairs(due) do
  local b = find(id)
  change(b, nil)
  teams[b.fixed.team] = true
end
for team in pairs(teams) do
  promote(team)
end
commit()
return answer(#due)
