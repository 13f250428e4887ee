-- Let queued bookings go, one after the other, where caps and capacity allow it. Neighbours of
-- one group go together: all of them, or none.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, now, orders: [{id, chosen, place, limits, group}]}
-- Answers  an outcome for each order; what holds already stays as it is

local refused = refusal(true)
if refused then
  return answer(refused)
end

-- The outcome, and whether the booking holds now.
local function release(order)
  local b = find(order.id)
  if not b or b.live.linger then
    return denied(order.id, { cause = 'gone' }), false
  end
  if holding(b) then
    return outcome_of(b), true
  end
  if b.live.state ~= 'Queued' then
    return denied(b.id, { cause = 'state', subject = b.live.state }), false
  end
  local option, total = b.fixed.options[order.chosen + 1], 0
  for _, n in pairs(order.place) do
    total = total + n
  end
  if not option or total > b.live.pods then
    return denied(b.id, { cause = 'invalid' }), false
  end

  take_over(b)
  local cap, surge = check_caps(b, option, b.live.pods, order.limits)
  if cap then
    return denied(b.id, cap), false
  end
  local right = order.limits.guaranteed and order.limits.guaranteed[option.pool]
  local promised = forbidding_guarantee(b, option, b.live.pods, right, false)
  if promised then
    return denied(b.id, promised), false
  end
  local crowded = crowded_node(option, order.place)
  if crowded then
    local lacks = { cause = 'capacity', subject = crowded, asked = option.milli * b.live.pods }
    return denied(b.id, lacks), false
  end
  local released = evolve(b, {
    state = 'Released', chosen = order.chosen, place = order.place, since = request.now,
    surge = surge, limits = surge and order.limits or false, blocked = false, lifted = false, kept = false,
    keeps = false, reason = false,
    cause = false, subject = false, used = false, limit = false, asked = false,
  })
  change(b, released)
  promote(b.fixed.team)
  return outcome_of(released), true
end

local orders, reply, first = request.orders, {}, 1
while first <= #orders do
  local group, last, failed = orders[first].group or '', first, nil
  while group ~= '' and orders[last + 1] and orders[last + 1].group == group do
    last = last + 1
  end
  for i = first, last do
    local outcome, done = release(orders[i])
    reply[i] = outcome
    if not done then
      failed = i
      break
    end
  end
  if failed then
    forget_changes()
    for i = first, last do
      if i ~= failed then
        local b = find(orders[i].id)
        reply[i] = b and holding(b) and outcome_of(b)
          or denied(orders[i].id, { cause = 'group', subject = orders[failed].id })
      end
    end
  else
    commit()
  end
  first = last + 1
end
return answer(reply)
