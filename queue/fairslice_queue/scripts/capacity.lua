-- Put between records.lua and the scripts that publish capacity.

-- Add pairs in calls of some hundred, since each call costs as much as a dozen pairs.
local function add_pairs(command, key, flat)
  for first = 1, #flat, 400 do
    call(command, key, unpack(flat, first, math.min(first + 399, #flat)))
  end
end

-- offers: offer → node → allocatable units. Free is what is neither placed
-- nor kept for somebody; it may be negative.
local function publish(offers)
  local known, totals = prefix .. 'offers', prefix .. 'offered'
  for _, offer in ipairs(call('SMEMBERS', known)) do
    call('DEL', prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer)
    call('SREM', REGISTRY, prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer)
  end
  call('DEL', known, totals)
  for offer, nodes in pairs(offers) do
    local capacity, free = prefix .. 'capacity:' .. offer, prefix .. 'free:' .. offer
    local used = {}
    for _, kind in ipairs({ 'placed:', 'kept:' }) do
      local flat = call('HGETALL', prefix .. kind .. offer)
      for i = 1, #flat, 2 do
        used[flat[i]] = (used[flat[i]] or 0) + tonumber(flat[i + 1])
      end
    end
    local total, offered, left = 0, {}, {}
    for node, units in pairs(nodes) do
      offered[#offered + 1], offered[#offered + 2] = node, units
      left[#left + 1], left[#left + 2] = units - (used[node] or 0), node
      total = total + units
    end
    add_pairs('HSET', capacity, offered)
    add_pairs('ZADD', free, left)
    call('SADD', REGISTRY, capacity, free)
    call('SADD', known, offer)
    call('HSET', totals, offer, total)
  end
end
