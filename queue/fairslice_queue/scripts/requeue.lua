-- Free what a booking holds and put it back in line, on hold, or among the preempted.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, state, pods, reason, now}
-- Answers  false if there is no such booking

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if not b or b.live.linger then
  return answer(false)
end
local since = b.live.state ~= request.state and request.now or b.live.since
change(b, evolve(b, {
  state = request.state, pods = request.pods, reason = request.reason, since = since,
  chosen = -1, place = false, surge = false, limits = false, blocked = false,
  lifted = false, kept = false, keeps = false,
  cause = false, subject = false, used = false, limit = false, asked = false,
}))
promote(b.fixed.team)
commit()
local pods = prefix .. 'pods:' .. b.id
if call('DEL', pods) == 1 then
  call('SREM', REGISTRY, pods)
end
return answer(true)
