-- Let a queued booking go, if caps and capacity allow it.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, chosen, place, limits, now}
-- Answers  an outcome; what holds already stays as it is

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if not b or b.live.linger then
  return answer(denied(request.id, { cause = 'gone' }))
end
if holding(b) then
  return answer(outcome_of(b))
end
if b.live.state ~= 'Queued' then
  return answer(denied(b.id, { cause = 'state', subject = b.live.state }))
end
local option, total = b.fixed.options[request.chosen + 1], 0
for _, n in pairs(request.place) do
  total = total + n
end
if not option or total > b.live.pods then
  return answer({ error = 'invalid', text = 'no such option, or more pods placed than booked' })
end

take_over(b)
local cap, surge = check_caps(b, option, b.live.pods, request.limits)
if cap then
  return answer(denied(b.id, cap))
end
local crowded = crowded_node(option, request.place)
if crowded then
  return answer(denied(b.id, { cause = 'capacity', subject = crowded, asked = option.milli * b.live.pods }))
end
local released = evolve(b, {
  state = 'Released', chosen = request.chosen, place = request.place, since = request.now,
  surge = surge, limits = surge and request.limits or false, blocked = false, reason = false,
  cause = false, subject = false, used = false, limit = false, asked = false,
})
change(b, released)
promote(b.fixed.team)
commit()
return answer(outcome_of(released))
