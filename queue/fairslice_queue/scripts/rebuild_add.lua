-- Add some of the bookings that the API server shows.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, generation, ids}
-- ARGV[2…] a booking for each id, in its three lines

local refused = refusal(false)
if refused then
  return answer(refused)
end
if call('HGET', KEYS[1], 'building') ~= request.generation then
  return answer({ error = 'incomplete' })
end
for i, id in ipairs(request.ids) do
  change(find(id), parse(id, ARGV[i + 1]))
end
commit(true)
return answer(true)
