-- Put between books.lua and the scripts that publish capacity.

-- offers: offer → node → allocatable units. Free is what is not placed; it may be negative.
local function publish(offers)
  local known, totals = prefix .. 'offers', prefix .. 'offered'
  for _, offer in ipairs(call('SMEMBERS', known)) do
    call('DEL', prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer)
    call('SREM', REGISTRY, prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer)
  end
  call('DEL', known, totals)
  for offer, nodes in pairs(offers) do
    local capacity, free = prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer
    local used, flat = {}, call('HGETALL', prefix .. 'placed:' .. offer)
    for i = 1, #flat, 2 do
      used[flat[i]] = tonumber(flat[i + 1])
    end
    local total = 0
    for node, units in pairs(nodes) do
      call('HSET', capacity, node, units)
      call('ZADD', free, units - (used[node] or 0), node)
      total = total + units
    end
    call('SADD', REGISTRY, capacity, free)
    call('SADD', known, offer)
    call('HSET', totals, offer, total)
  end
end
