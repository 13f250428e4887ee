-- Book, queue or deny. The same id, or a tentative booking for the same object and the same
-- ask, is the same booking.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, team, object, ask, now, expires, limits, start, overflow_queue, capacity,
--          max_tentative, kind, namespace, name, generate_name}
-- ARGV[2]  the booking as `live` and `fixed` lines, state Queued, nothing chosen
-- ARGV[3]  the same as it is to wait, if that differs
-- Answers  the outcome; for a request that came again, also its booking's two lines

local refused = refusal(true)
if refused then
  return answer(refused)
end
local id, team = request.id, request.team
local b = parse(id, ARGV[2])
local tentative = prefix .. 'tentative:' .. team

-- What came to nothing makes room first; right by itself, so it is written at once.
local expired = call('ZRANGEBYSCORE', tentative, '-inf', request.now)
if #expired > 0 then
  for _, old in ipairs(expired) do
    change(find(old), nil)
  end
  promote(team)
  commit()
end

local function again(found)
  if found.live.expires and not found.live.bound then
    change(found, evolve(found, { expires = request.expires }))
    commit()
  end
  return { cjson.encode(outcome_of(found)), format(found) }
end

-- Stamps get copied along with manifests: an id counts only for the object it was given to,
-- and only until that object exists.
local function is_replay(found)
  local ref = found.fixed.ref
  return found.fixed.team == team and not found.live.bound
    and ref.kind == request.kind and ref.namespace == request.namespace
    and (ref.name or '') == request.name and (ref.generate_name or '') == request.generate_name
end

local same = find(id)
if same and not same.live.linger then
  if not is_replay(same) then
    return answer({ error = 'taken', team = same.fixed.team })
  end
  return again(same)
end

local replaced
if request.object ~= '' then
  local other = call('HGET', prefix .. 'objects', request.object)
  replaced = other and find(other) or nil
  if replaced and replaced.live.ask == request.ask then
    return again(replaced)
  end
end

-- (A namespace that moved between teams leaves the other team's.)
local own = replaced and replaced.fixed.team == team
local unfinished = call('ZCARD', tentative) - (own and 1 or 0)
if unfinished >= request.max_tentative then
  return answer(denied(id, {
    cause = 'tentative', subject = team, used = unfinished, limit = request.max_tentative, asked = 1,
  }))
end

local function clear_way()
  if same then
    change(same, nil)
  end
  if replaced then
    change(replaced, nil)
  end
end

clear_way()
local given = take_over(b)

local ahead, seen = 0, {}
for _, option in ipairs(b.fixed.options) do
  if not seen[option.pool] then
    seen[option.pool] = true
    ahead = math.max(ahead, call('ZCOUNT', prefix .. 'waiting:' .. option.pool, '-inf', b.fixed.rank))
  end
end

-- The reason is that of the option that came closest; of equals, the first.
local pods, reason, closeness, started = b.live.pods, nil, 0, nil
local function explain(closer, cap)
  if closer > closeness then
    reason, closeness = cap, closer
  end
end

-- Whether it is more than the team may start without the queue having looked at it.
local function is_lent(option)
  local most = request.limits.at_once and request.limits.at_once[option.pool]
  if not most then
    return false
  end
  local key, field = prefix .. 'held:' .. team, 'p|' .. option.pool
  local now = tonumber(call('HGET', key, field) or '0') + sum(held, key, field)
  return now + option.milli * pods > most
end

for index, option in ipairs(b.fixed.options) do
  local cap, surge = check_caps(b, option, pods, request.limits)
  local covered = (given[option.pool] or 0) >= option.milli * pods
  if cap then
    explain(1, cap)
  elseif not request.start then
    explain(4, { cause = 'placement', subject = option.pool, asked = option.milli * pods })
  elseif is_lent(option) and not covered then
    explain(4, { cause = 'lending', subject = option.pool, asked = option.milli * pods })
  elseif ahead > 0 and not covered then
    explain(3, { cause = 'standing', subject = option.pool, used = ahead, asked = option.milli * pods })
  else
    local place = {}
    if request.capacity then
      place = find_place(option, pods)
    end
    if place then
      started = evolve(b, {
        state = 'Released', chosen = index - 1, place = place, surge = surge,
        limits = surge and request.limits or false,
      })
      break
    end
    explain(2, lacking_capacity(option, pods))
  end
end

local function promote_cleared()
  if same or replaced or next(given) then
    promote(team)
  end
  if replaced and not own then
    promote(replaced.fixed.team)
  end
end

if started then
  change(nil, started)
  promote_cleared()
  commit()
  return answer(outcome_of(started))
end
forget_changes()
if not request.overflow_queue then
  return answer(denied(id, reason))
end
clear_way()
local waiting = ARGV[3] and parse(id, ARGV[3]) or b
reason.ask = request.ask
local queued = evolve(waiting, reason)
change(nil, queued)
promote_cleared()
commit()
return answer(outcome_of(queued))
