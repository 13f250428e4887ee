-- Put in front of every other script when it is loaded.
--
-- KEYS[1]  {fairslice}:meta. All other keys are made from its prefix; as they share the hash
--          tag, they live in the same slot of a cluster. Their names: ledger_keys.py.
-- ARGV[1]  the request, as JSON. Times in it are text, so that no digit is lost.
--
-- A transition collects changes (`change`), and reads through them. Nothing is written before
-- `commit`: a script that fails keeps what it wrote, so what can fail comes first.

local call = redis.call
local prefix = string.sub(KEYS[1], 1, -5)
local BOOKINGS, LOG, REGISTRY = prefix .. 'bookings', prefix .. 'log', prefix .. 'keys'
local LOG_LENGTH = 20000
local HOLDS = { Released = true, Running = true, Preempted = true }

local request = cjson.decode(ARGV[1])

local function answer(value)
  return { cjson.encode(value) }
end

-- Whether this call must be refused: books incomplete, or a leader that was replaced.
local function refusal(needs_books)
  local meta = call('HMGET', KEYS[1], 'ready', 'epoch')
  if request.epoch then
    local epoch = tonumber(meta[2] or '0')
    if request.epoch < epoch then
      return { error = 'stale', epoch = epoch }
    end
  end
  if needs_books and meta[1] ~= '1' then
    return { error = 'incomplete' }
  end
  return nil
end

-- A booking in Redis is two lines of JSON: what changes (`live`), and the booking as it was
-- made (`fixed`), which is kept letter by letter since cjson can't tell [] from {}.
local function parse(id, raw)
  local cut = string.find(raw, '\n', 1, true)
  local body = string.sub(raw, cut + 1)
  return { id = id, live = cjson.decode(string.sub(raw, 1, cut - 1)), fixed = cjson.decode(body), body = body }
end

local function format(b)
  return cjson.encode(b.live) .. '\n' .. b.body
end

-- The booking with some live fields replaced; false takes a field away.
local function evolve(b, fields)
  local live = {}
  for name, value in pairs(b.live) do
    live[name] = value
  end
  for name, value in pairs(fields) do
    live[name] = value or nil
  end
  return { id = b.id, live = live, fixed = b.fixed, body = b.body }
end

local function option_of(b)
  if b.live.chosen >= 0 then
    return b.fixed.options[b.live.chosen + 1]
  end
  return nil
end

local function holding(b)
  return HOLDS[b.live.state] and b.live.chosen >= 0
end

local function offer_of(option, resource)
  return option.pool .. '|' .. option.product .. '|' .. resource
end

local function group_of(b)
  local group = b.fixed.group
  if group and group ~= '' then
    return b.fixed.team .. '|' .. group
  end
  return nil
end

-- The collected changes: bookings by id, then what they add to holdings and to units placed.
local pending, ids, held, placed = {}, {}, {}, {}

local function forget_changes()
  pending, ids, held, placed = {}, {}, {}, {}
end

local function add(tree, branch, leaf, amount)
  local leaves = tree[branch]
  if not leaves then
    leaves = {}
    tree[branch] = leaves
  end
  leaves[leaf] = (leaves[leaf] or 0) + amount
end

local function sum(tree, branch, leaf)
  local leaves = tree[branch]
  return leaves and leaves[leaf] or 0
end

-- A rollout's extra pod (`surge`) counts as surge and towards no cap.
local function count(b, sign)
  if not holding(b) then
    return
  end
  local option, fixed, pods = option_of(b), b.fixed, b.live.pods
  local team, milli = prefix .. 'held:' .. fixed.team, sign * option.milli * pods
  if b.live.surge then
    add(held, team, 's|' .. option.pool, milli)
  else
    add(held, team, 'p|' .. option.pool, milli)
    add(held, team, 'c|' .. fixed.work_class, milli)
    add(held, team, 'u|' .. fixed.user, milli)
    for resource, units in pairs(option.units) do
      add(held, team, 'r|' .. resource, sign * units * pods)
    end
  end
  for resource, units in pairs(option.units) do
    local offer = offer_of(option, resource)
    for node, n in pairs(b.live.place or {}) do
      add(placed, offer, node, sign * n * units)
    end
  end
end

local function find(id)
  local entry = pending[id]
  if entry then
    return entry.new or nil
  end
  local raw = call('HGET', BOOKINGS, id)
  return raw and parse(id, raw) or nil
end

-- Replace `old` (as found) by `new`; nil for none.
local function change(old, new)
  local id = (new or old).id
  local entry = pending[id]
  if entry then
    entry.new = new
  else
    pending[id] = { old = old, new = new }
    ids[#ids + 1] = id
  end
  if old then
    count(old, -1)
  end
  if new then
    count(new, 1)
  end
end

-- The index entries that a booking has: sorted sets (z) and hashes (h).
local function entries_of(b)
  local entries = {}
  if not b then
    return entries
  end
  local live, fixed = b.live, b.fixed
  local function put(kind, key, member, value)
    entries[key .. '\n' .. member] = { kind = kind, key = prefix .. key, member = member, value = value }
  end
  local group = group_of(b)
  if live.linger then
    put('z', 'deadlines', b.id, live.expires)
    put('z', 'lingering:' .. group, b.id, live.expires)
  else
    if live.expires and not live.bound then
      put('z', 'deadlines', b.id, live.expires)
      put('z', 'tentative:' .. fixed.team, b.id, live.expires)
      if live.object then
        put('h', 'objects', live.object, b.id)
      end
    end
    if group and holding(b) and live.pods > 0 then
      put('h', 'group:' .. group, b.id, fixed.group_revision or '')
    end
  end
  -- Only what exists stands in others' way: requests that come to nothing must not.
  if live.state == 'Queued' and live.bound and not live.blocked then
    for _, option in ipairs(fixed.options) do
      put('z', 'waiting:' .. option.pool, b.id, fixed.rank)
    end
  end
  if live.surge then
    put('z', 'surging:' .. fixed.team, b.id, 0)
  end
  return entries
end

local function commit_indexes(touched, emptied)
  local gone, come = {}, {}
  for _, id in ipairs(ids) do
    local before, after = entries_of(pending[id].old), entries_of(pending[id].new)
    for name, entry in pairs(before) do
      if not after[name] then
        gone[#gone + 1] = entry
      end
    end
    for name, entry in pairs(after) do
      local was = before[name]
      if not was or was.value ~= entry.value then
        come[#come + 1] = entry
      end
    end
  end
  for _, entry in ipairs(gone) do
    call(entry.kind == 'z' and 'ZREM' or 'HDEL', entry.key, entry.member)
    emptied[entry.key] = true
  end
  for _, entry in ipairs(come) do
    if entry.kind == 'z' then
      call('ZADD', entry.key, entry.value, entry.member)
    else
      call('HSET', entry.key, entry.member, entry.value)
    end
    touched[entry.key] = true
  end
end

local function commit_amounts(touched, emptied)
  for key, fields in pairs(held) do
    for field, delta in pairs(fields) do
      if delta ~= 0 then
        touched[key] = true
        if call('HINCRBY', key, field, delta) == 0 then
          call('HDEL', key, field)
          emptied[key] = true
        end
      end
    end
  end
  for offer, nodes in pairs(placed) do
    local key = prefix .. 'placed:' .. offer
    for node, delta in pairs(nodes) do
      if delta ~= 0 then
        touched[key] = true
        if call('HINCRBY', key, node, delta) == 0 then
          call('HDEL', key, node)
          emptied[key] = true
        end
        -- XX: a node that offers nothing (any more) has no free units.
        call('ZADD', prefix .. 'free:' .. offer, 'XX', 'INCR', -delta, node)
      end
    end
  end
end

-- Write all collected changes. `unlogged`: without telling those who follow the log.
local function commit(unlogged)
  local touched, emptied = {}, {}
  commit_indexes(touched, emptied)
  commit_amounts(touched, emptied)
  for _, id in ipairs(ids) do
    local new = pending[id].new
    if new then
      call('HSET', BOOKINGS, id, format(new))
    else
      call('HDEL', BOOKINGS, id)
      call('DEL', prefix .. 'pods:' .. id)
      emptied[prefix .. 'pods:' .. id] = true
    end
    if not unlogged then
      call('XADD', LOG, 'MAXLEN', '~', LOG_LENGTH, '*', 'id', id)
    end
  end
  local keys = {}
  for key in pairs(touched) do
    keys[#keys + 1] = key
    emptied[key] = nil
  end
  if #keys > 0 then
    call('SADD', REGISTRY, unpack(keys))
  end
  for key in pairs(emptied) do
    if call('EXISTS', key) == 0 then
      call('SREM', REGISTRY, key)
    end
  end
  forget_changes()
end

-- Caps ------------------------------------------------------------------------------------

-- The cap that forbids `pods` more of `option`, or nil: {cause, subject, used, limit, asked}.
local function forbidding_cap(b, option, pods, limits)
  if pods <= 0 then
    return nil
  end
  local fixed = b.fixed
  local key, milli = prefix .. 'held:' .. fixed.team, option.milli * pods
  -- A pool that isn't named gives nothing; one with null has no cap.
  local pool_cap = limits.pools[option.pool] or 0
  local checks = {
    { 'limit', option.pool, 'p|' .. option.pool, pool_cap, milli },
    { 'class', fixed.work_class, 'c|' .. fixed.work_class, limits.work_class, milli },
    { 'user', fixed.user, 'u|' .. fixed.user, limits.user, milli },
  }
  for resource, units in pairs(option.units) do
    local cap = limits.resources and limits.resources[resource]
    checks[#checks + 1] = { 'resource', resource, 'r|' .. resource, cap, units * pods }
  end
  local fields = {}
  for i, check in ipairs(checks) do
    fields[i] = check[3]
  end
  local used = call('HMGET', key, unpack(fields))
  for i, check in ipairs(checks) do
    local now, cap = tonumber(used[i] or '0') + sum(held, key, check[3]), check[4]
    if type(cap) == 'number' and now + check[5] > cap then
      return { cause = check[1], subject = check[2], used = now, limit = cap, asked = check[5] }
    end
  end
  return nil
end

-- Whether a pod of another revision of the same group holds something.
local function replaces_another(b)
  local group, revision = group_of(b), b.fixed.group_revision
  if not group or not revision or revision == '' then
    return false
  end
  local members = call('HGETALL', prefix .. 'group:' .. group)
  for i = 1, #members, 2 do
    local id, entry = members[i], pending[members[i]]
    local gone = entry and not (entry.new and holding(entry.new) and not entry.new.live.linger)
    if id ~= b.id and members[i + 1] ~= revision and not gone then
      return true
    end
  end
  return false
end

-- nil, false: allowed; nil, true: allowed as surge; else the cap.
local function check_caps(b, option, pods, limits)
  local cap = forbidding_cap(b, option, pods, limits)
  if not cap then
    return nil, false
  end
  local allowance = limits.surge or 0
  if allowance <= 0 or not replaces_another(b) then
    return cap, false
  end
  local key, field = prefix .. 'held:' .. b.fixed.team, 's|' .. option.pool
  local surge = tonumber(call('HGET', key, field) or '0') + sum(held, key, field)
  if surge + option.milli * pods > allowance then
    return cap, false
  end
  return nil, true
end

-- Count surge as ordinary holdings where the team has room for it again.
local function promote(team)
  for _, id in ipairs(call('ZRANGE', prefix .. 'surging:' .. team, 0, -1)) do
    local b = find(id)
    if b and b.live.surge then
      local limits, room = b.live.limits, false
      if limits then
        room = not forbidding_cap(b, option_of(b), b.live.pods, limits)
      else
        room = not replaces_another(b)
      end
      if room then
        change(b, evolve(b, { surge = false, limits = false }))
      end
    end
  end
end

-- Capacity --------------------------------------------------------------------------------

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
      if not free or tonumber(free) - sum(placed, offer, node) < n * units then
        return node
      end
    end
  end
  return nil
end

-- Succession ------------------------------------------------------------------------------

-- Give up what pods of the group left behind for this one, as many as it needs: a pod with a
-- name of its own (StatefulSet) follows its namesake only, one without follows any. Returns the
-- milli-GPU given up by pool.
local function take_over(b)
  local given, group, left = {}, group_of(b), b.live.pods
  if not group then
    return given
  end
  for _, id in ipairs(call('ZRANGE', prefix .. 'lingering:' .. group, 0, -1)) do
    local old, name = left > 0 and find(id), b.fixed.ref.name or ''
    if old and old.live.linger and (name == '' or name == old.live.name) then
      local option = option_of(old)
      given[option.pool] = (given[option.pool] or 0) + option.milli * old.live.pods
      left = left - old.live.pods
      change(old, nil)
    end
  end
  return given
end

local function outcome_of(b)
  local live = b.live
  local result = {
    id = b.id, chosen = live.chosen, place = live.place or {}, surge = live.surge or false,
    verdict = holding(b) and 'booked' or 'queued',
  }
  if not holding(b) then
    result.cause, result.subject = live.cause or '', live.subject or ''
    result.used, result.limit, result.asked = live.used or 0, live.limit or 0, live.asked or 0
  end
  return result
end

local function denied(id, cap)
  return {
    verdict = 'denied', id = id, cause = cap.cause, subject = cap.subject or '',
    used = cap.used or 0, limit = cap.limit or 0, asked = cap.asked or 0,
  }
end
