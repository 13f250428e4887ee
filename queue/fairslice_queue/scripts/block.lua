-- Say that waiting bookings stand in nobody's way (their own teams' caps hold them up), or do.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, blocked: id → whether it stands in nobody's way}

local refused = refusal(true)
if refused then
  return answer(refused)
end
for id, blocked in pairs(request.blocked) do
  local b = find(id)
  if b and b.live.state == 'Queued' and (b.live.blocked or false) ~= blocked then
    change(b, evolve(b, { blocked = blocked }))
  end
end
commit()
return answer(true)
