-- Book, queue or deny. The same id, or a tentative booking for the same object and the same
-- ask, is the same booking.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV     see book_request.lua
-- Answers  the outcome; for a request that came again, also its booking's lines. What started
--          at once: `+`, the option chosen, a space, the node if there is one.

local refused = refusal(true)
if refused then
  return answer(refused)
end
local id, team = request.id, request.team
local b = parse(id, request.record)
local tentative = prefix .. 'tentative:' .. team

-- What came to nothing makes room first; right by itself, so it is written at once.
local expired = call('ZRANGEBYSCORE', tentative, '-inf', request.now, 'LIMIT', 0, 50)
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

-- Too many unfinished requests may hold units no longer; those who can wait are queued.
-- (A namespace that moved between teams leaves the other team's.)
local own = replaced and replaced.fixed.team == team
local unfinished = call('ZCOUNT', tentative, '(' .. request.now, '+inf') - (own and 1 or 0)
local crowded = unfinished >= request.max_tentative

local function clear_way()
  if same then
    change(same, nil)
  end
  if replaced then
    change(replaced, nil)
  end
end

clear_way()
local given, pods = take_over(b), b.live.pods

-- How many wait for the same that go first. Those within their guarantee go before those who
-- borrow, whatever their class; who may borrow what others keep competes for all of the pool.
local function ahead_of(option, borrows)
  local most, ahead = borrows and not request.passes and '+inf' or b.fixed.rank, 0
  local function look(line)
    ahead = math.max(ahead, call('ZCOUNT', prefix .. 'waiting:' .. line, '-inf', most))
  end
  for _, line in ipairs(lines_of(option)) do
    look(line)
  end
  if borrows and lending_key(option.pool) then
    local start = option.pool .. '|'
    for _, offer in ipairs(call('SMEMBERS', prefix .. 'offers')) do
      if string.sub(offer, 1, #start) == start then
        look(offer)
      end
    end
  end
  return ahead
end

-- Why an option can't be had just now, and how close it came; nil if it can, beside whether as
-- surge, and where.
local function hindrance(option)
  local asked = option.milli * pods
  local cap, surge = check_caps(b, option, pods, request.limits)
  if cap then
    return cap, 1
  end
  if crowded then
    local most = request.max_tentative
    return { cause = 'tentative', subject = team, used = unfinished, limit = most, asked = 1 }, 5
  end
  if not request.start then
    return { cause = 'placement', subject = option.pool, asked = asked }, 4
  end
  if (given[option.pool] or 0) < asked then
    local right = request.limits.guaranteed and request.limits.guaranteed[option.pool]
    local promised = forbidding_guarantee(b, option, pods, right, true)
    if promised then
      return promised, 4
    end
    local borrows = right and pods > 0 and held_by(team, 'p|' .. option.pool) + asked > right
    local ahead = ahead_of(option, borrows)
    if ahead > 0 then
      return { cause = 'standing', subject = option.pool, used = ahead, asked = asked }, 3
    end
  end
  local place = request.capacity and find_place(option, pods) or not request.capacity and {}
  if not place then
    return lacking_capacity(option, pods), 2
  end
  return nil, 0, surge, place
end

-- The reason is that of the option that came closest; of equals, the first.
local reason, closeness, started = nil, 0, nil
for index, option in ipairs(b.fixed.options) do
  local why, close, surge, place = hindrance(option)
  if not why then
    started = evolve(b, {
      state = 'Released', chosen = index - 1, place = place, surge = surge,
      limits = surge and request.limits or false,
    })
    break
  elseif close > closeness then
    reason, closeness = why, close
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
local waiting = request.waiting and parse(id, request.waiting) or b
reason.ask = request.ask
local queued = evolve(waiting, reason)
change(nil, queued)
promote_cleared()
commit()
return answer(outcome_of(queued))
