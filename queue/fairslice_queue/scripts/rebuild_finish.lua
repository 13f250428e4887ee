-- Publish what nodes offer and open the books.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, generation, capacity: offer → node → allocatable units, lending: as
--          publish_lending.lua has it, or null}

local refused = refusal(false)
if refused then
  return answer(refused)
end
if call('HGET', KEYS[1], 'building') ~= request.generation then
  return answer({ error = 'incomplete' })
end
publish(request.capacity)
if type(request.lending) == 'table' then
  publish_lending(request.lending)
end
call('HDEL', KEYS[1], 'building')
call('HSET', KEYS[1], 'generation', request.generation, 'ready', FORM)
return answer(true)
