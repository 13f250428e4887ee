-- Write down what a holding booking really holds, and where, whatever the caps say.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, state, pods, place, now}
-- Answers  false if there is no such booking, or it holds nothing

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if not b or b.live.linger or not holding(b) then
  return answer(false)
end
local since = b.live.state ~= request.state and request.now or b.live.since
change(b, evolve(b, { state = request.state, pods = request.pods, place = request.place, since = since }))
promote(b.fixed.team)
commit()
return answer(true)
