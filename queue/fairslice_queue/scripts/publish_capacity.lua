-- Replace what nodes offer.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, capacity: offer → node → allocatable units}

local refused = refusal(true)
if refused then
  return answer(refused)
end
publish(request.capacity)
return answer(true)
