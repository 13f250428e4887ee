-- Put between records.lua and the scripts that change what is held.
--
-- A transition collects changes (`change`), and reads through them. Nothing is written before
-- `commit`: a script that fails keeps what it wrote, so what can fail comes first.

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

-- The collected changes: bookings by id, then what they add to holdings, to units placed and to
-- units kept.
local pending, ids, held, placed, kept = {}, {}, {}, {}, {}

local function forget_changes()
  pending, ids, held, placed, kept = {}, {}, {}, {}, {}
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

local function count_place(tree, option, place, sign)
  for resource, units in pairs(option.units) do
    local offer = offer_of(option, resource)
    for node, n in pairs(place) do
      add(tree, offer, node, sign * n * units)
    end
  end
end

-- A rollout's extra pod (`surge`) counts as surge and towards no cap.
local function count(b, sign)
  local live, fixed = b.live, b.fixed
  if live.kept then
    count_place(kept, fixed.options[live.keeps + 1], live.kept, sign)
  end
  if not holding(b) then
    return
  end
  local option, pods = option_of(b), live.pods
  local team, milli = fixed.team, sign * option.milli * pods
  if live.surge then
    add(held, team, 's|' .. option.pool, milli)
  else
    add(held, team, 'p|' .. option.pool, milli)
    add(held, team, 'c|' .. fixed.work_class, milli)
    add(held, team, 'u|' .. fixed.user, milli)
    for resource, units in pairs(option.units) do
      add(held, team, 'r|' .. resource, sign * units * pods)
    end
  end
  count_place(placed, option, live.place or {}, sign)
end

local function find(id)
  local entry = pending[id]
  if entry then
    return entry.new or nil
  end
  return read(id)
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
  local stand = stand_of(b)
  if stand then
    for _, option in ipairs(fixed.options) do
      for _, line in ipairs(lines_of(option)) do
        put('z', 'waiting:' .. line, b.id, stand)
      end
    end
  end
  if live.kept then
    put('h', 'keeping', b.id, live.keeps)
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

local function commit_fields(key, fields, touched, emptied)
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

local function commit_amounts(touched, emptied)
  for team, fields in pairs(held) do
    commit_fields(prefix .. 'held:' .. team, fields, touched, emptied)
    commit_lending(team, fields)
  end
  for kind, tree in pairs({ ['placed:'] = placed, ['kept:'] = kept }) do
    for offer, nodes in pairs(tree) do
      commit_fields(prefix .. kind .. offer, nodes, touched, emptied)
      for node, delta in pairs(nodes) do
        if delta ~= 0 then
          -- XX: a node that offers nothing (any more) has no free units.
          call('ZADD', prefix .. 'free:' .. offer, 'XX', 'INCR', -delta, node)
        end
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
      local pods = prefix .. 'pods:' .. id
      if call('DEL', pods) == 1 then
        call('SREM', REGISTRY, pods)
      end
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
