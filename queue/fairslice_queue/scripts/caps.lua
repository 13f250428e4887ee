-- Put behind books.lua: what a team may hold.

local function held_by(team, field)
  return tonumber(call('HGET', prefix .. 'held:' .. team, field) or '0') + sum(held, team, field)
end

-- The cap that forbids `pods` more of `option`, or nil: {cause, subject, used, limit, asked}.
local function forbidding_cap(b, option, pods, limits)
  if pods <= 0 then
    return nil
  end
  local fixed = b.fixed
  local team, milli = fixed.team, option.milli * pods
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
  local used = call('HMGET', prefix .. 'held:' .. team, unpack(fields))
  for i, check in ipairs(checks) do
    local now, cap = tonumber(used[i] or '0') + sum(held, team, check[3]), check[4]
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
  local surge = held_by(b.fixed.team, 's|' .. option.pool)
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

-- What of a pool others keep of their guarantees, if it forbids `pods` more of an option to a
-- team that has a right to so much (nil: to whatever is there). In a book that was never told
-- who keeps what, `unsure` forbids all borrowing.
local function forbidding_guarantee(b, option, pods, right, unsure)
  local team, pool, asked = b.fixed.team, option.pool, option.milli * pods
  if not right or pods <= 0 or held_by(team, 'p|' .. pool) + asked <= right then
    return nil
  end
  local cap = { cause = 'lending', subject = pool, used = 0, limit = 0, asked = asked }
  if not lending then
    return unsure and cap or nil
  end
  local key = lending_key(pool)
  if not key then
    return nil
  end
  local pool_now = call('HMGET', key, 'capacity', 'used', 'kept')
  local used, others = tonumber(pool_now[2]), tonumber(pool_now[3])
  others = others - unmet(key, team, 0)
  for other in pairs(held) do
    local delta = sum(held, other, 'p|' .. pool) + sum(held, other, 's|' .. pool)
    used = used + delta
    if other ~= team and delta ~= 0 then
      others = others - unmet(key, other, 0) + unmet(key, other, delta)
    end
  end
  local free = math.max(0, tonumber(pool_now[1]) - used)
  if others > 0 and asked > free - others then
    cap.used, cap.limit = others, free
    return cap
  end
  return nil
end
