-- Replace who keeps what of its guarantee.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, lending: pool → {capacity, kept: team → milli-GPU}}

local refused = refusal(true)
if refused then
  return answer(refused)
end
publish_lending(request.lending)
return answer(true)
