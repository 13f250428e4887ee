-- Say how waiting bookings stand in others' way: not at all, since only their own teams' caps
-- hold them up; before every rank, since they have waited for long; or by their rank.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, blocked: id → whether it stands in nobody's way, lifted: id → whether it goes
--          before every rank}

local refused = refusal(true)
if refused then
  return answer(refused)
end
for field, told in pairs({ blocked = request.blocked, lifted = request.lifted }) do
  for id, yes in pairs(told) do
    local b = find(id)
    if b and b.live.state == 'Queued' and (b.live[field] or false) ~= yes then
      change(b, evolve(b, { [field] = yes }))
    end
  end
end
commit()
return answer(true)
