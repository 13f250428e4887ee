-- Say that a waiting booking stands in nobody's way (its own team's caps hold it up), or does.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, blocked}

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if b and b.live.state == 'Queued' and (b.live.blocked or false) ~= request.blocked then
  change(b, evolve(b, { blocked = request.blocked }))
  commit()
end
return answer(true)
