-- Keep units for waiting bookings: nobody starts on them at once, and these stand in nobody's
-- way any more.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, keeps: id → {chosen, place}, or null to keep nothing any longer}

local refused = refusal(true)
if refused then
  return answer(refused)
end
for id, keep in pairs(request.keeps) do
  local b = find(id)
  if b and b.live.state == 'Queued' and not b.live.linger then
    local told = type(keep) == 'table'
    if told and b.fixed.options[keep.chosen + 1] then
      change(b, evolve(b, { kept = keep.place, keeps = keep.chosen }))
    elseif b.live.kept then
      change(b, evolve(b, { kept = false, keeps = false }))
    end
  end
end
commit()
return answer(true)
