-- Keep units for waiting bookings, for these and no others: nobody starts on them at once, and
-- these stand in nobody's way any more.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, keeps: id → {chosen, place}}

local refused = refusal(true)
if refused then
  return answer(refused)
end
for _, id in ipairs(call('HKEYS', prefix .. 'keeping')) do
  if not request.keeps[id] then
    local b = find(id)
    change(b, evolve(b, { kept = false, keeps = false }))
  end
end
for id, keep in pairs(request.keeps) do
  local b = find(id)
  if b and b.live.state == 'Queued' and not b.live.linger and b.fixed.options[keep.chosen + 1] then
    change(b, evolve(b, { kept = keep.place, keeps = keep.chosen }))
  end
end
commit()
return answer(true)
