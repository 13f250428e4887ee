-- Read what is free of offers, and how many wait for them.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {offers, rank}
-- Answers  {}, then the free units of each offer, then for each the number of those of this
--          rank or a better one that wait

local refused = refusal(true)
if refused then
  return answer(refused)
end
local reply = answer({})
for _, offer in ipairs(request.offers) do
  local free, flat = 0, call('ZRANGEBYSCORE', prefix .. 'free:' .. offer, 1, '+inf', 'WITHSCORES')
  for i = 2, #flat, 2 do
    free = free + tonumber(flat[i])
  end
  reply[#reply + 1] = free
end
for _, offer in ipairs(request.offers) do
  reply[#reply + 1] = call('ZCOUNT', prefix .. 'waiting:' .. offer, '-inf', request.rank)
end
return reply
