-- Close a booking; with `expires`, what it holds stays for its group's next pod until then.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, expires, reason}
-- Answers  false if there is no such booking

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if not b then
  return answer(false)
end
if request.expires ~= '' and group_of(b) and holding(b) and b.live.pods > 0 then
  if b.live.linger then
    return answer(true)
  end
  change(b, evolve(b, { bound = false, expires = request.expires, linger = true, reason = request.reason }))
else
  change(b, nil)
end
promote(b.fixed.team)
commit()
return answer(true)
