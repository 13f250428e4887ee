-- Say that waiting bookings stand in nobody's way (their own teams' caps hold them up), or do.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, ids, blocked}

local refused = refusal(true)
if refused then
  return answer(refused)
end
for _, id in ipairs(request.ids) do
  local b = find(id)
  if b and b.live.state == 'Queued' and (b.live.blocked or false) ~= request.blocked then
    change(b, evolve(b, { blocked = request.blocked }))
  end
end
commit()
return answer(true)
