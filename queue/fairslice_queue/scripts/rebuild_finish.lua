-- Publish what nodes offer and open the books.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, generation, capacity: offer → node → allocatable units}

local refused = refusal(false)
if refused then
  return answer(refused)
end
if call('HGET', KEYS[1], 'building') ~= request.generation then
  return answer({ error = 'incomplete' })
end
publish(request.capacity)
call('HDEL', KEYS[1], 'building')
call('HSET', KEYS[1], 'generation', request.generation, 'ready', '1')
return answer(true)
