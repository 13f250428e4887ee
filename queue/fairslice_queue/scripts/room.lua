-- Put behind books.lua: where there is room.

-- Nodes with at least `units` free, most first, the collected changes included.
local function roomy_nodes(offer, units, most)
  local key, pairs_found, changed = prefix .. 'free:' .. offer, nil, placed[offer]
  if changed then
    pairs_found = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else
    pairs_found = call('ZREVRANGEBYSCORE', key, '+inf', units, 'WITHSCORES', 'LIMIT', 0, most)
  end
  local nodes = {}
  for i = 1, #pairs_found, 2 do
    local node = pairs_found[i]
    local free = tonumber(pairs_found[i + 1]) - (changed and changed[node] or 0)
    if free >= units then
      nodes[#nodes + 1] = { name = node, free = free }
    end
  end
  if changed then
    table.sort(nodes, function(a, c)
      return a.free > c.free or (a.free == c.free and a.name > c.name)
    end)
  end
  return nodes
end

-- The node with the fewest free units that still has `units`, or nil.
local function tightest_node(offer, units)
  if placed[offer] then
    local nodes = roomy_nodes(offer, units)
    return #nodes > 0 and nodes[#nodes].name or nil
  end
  return call('ZRANGEBYSCORE', prefix .. 'free:' .. offer, units, '+inf', 'LIMIT', 0, 1)[1]
end

-- Where the pods can go: node → pods; nil if they can't all now. Pods of several resources
-- are the planner's: that they lie on one node is more than these sets can tell.
local function find_place(option, pods)
  local resource, units = next(option.units)
  if pods <= 0 or not resource then
    return {}
  end
  if next(option.units, resource) or units <= 0 then
    return nil
  end
  local offer = offer_of(option, resource)
  local one = tightest_node(offer, units * pods)
  if one then
    return { [one] = pods }
  end
  if pods == 1 then
    return nil
  end
  local place, left = {}, pods
  for _, node in ipairs(roomy_nodes(offer, units, pods)) do
    local n = math.min(left, math.floor(node.free / units))
    place[node.name] = n
    left = left - n
    if left == 0 then
      return place
    end
  end
  return nil
end

-- {cause, subject, used, limit, asked} of an offer that has too little free, in milli-GPU.
local function lacking_capacity(option, pods)
  local cap = { cause = 'capacity', subject = option.pool, used = 0, limit = 0, asked = option.milli * pods }
  local resource, units = next(option.units)
  if not resource or next(option.units, resource) or units <= 0 then
    return cap
  end
  local offer = offer_of(option, resource)
  local total = tonumber(call('HGET', prefix .. 'offered', offer) or '0')
  local free = 0
  for _, node in ipairs(roomy_nodes(offer, 1, 1000)) do
    free = free + node.free
  end
  local weight = option.milli / units
  cap.limit = math.floor(total * weight)
  cap.used = math.max(0, math.floor((total - free) * weight))
  return cap
end

-- Whether every node of a place has the units for its pods; the name of one that hasn't.
local function crowded_node(option, place)
  for resource, units in pairs(option.units) do
    local offer = offer_of(option, resource)
    for node, n in pairs(place) do
      local free = call('ZSCORE', prefix .. 'free:' .. offer, node)
      -- Who is let go was chosen by who keeps units for others, and knows of them.
      local aside = free and call('HGET', prefix .. 'kept:' .. offer, node) or '0'
      if not free or tonumber(free) + tonumber(aside) - sum(placed, offer, node) < n * units then
        return node
      end
    end
  end
  return nil
end
