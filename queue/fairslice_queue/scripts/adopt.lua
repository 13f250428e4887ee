-- Write down a booking found on the cluster, whatever the caps say.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id}
-- ARGV[2]  the booking in its three lines
-- Answers  true if it is new to the books, false if it replaces what they had

local refused = refusal(true)
if refused then
  return answer(refused)
end
local old, new = find(request.id), parse(request.id, ARGV[2])
change(old, new)
if old and old.fixed.team ~= new.fixed.team then
  promote(old.fixed.team)
end
promote(new.fixed.team)
commit()
return answer(old == nil)
