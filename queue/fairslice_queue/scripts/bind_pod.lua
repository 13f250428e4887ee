-- Tie an attached pod to its uid and name.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, pod, uid, name}
-- Answers  true; false if the pod isn't attached, or is another

local refused = refusal(true)
if refused then
  return answer(refused)
end
local key = prefix .. 'pods:' .. request.id
local found, final = call('HGET', key, request.pod), '=' .. request.uid .. ' ' .. request.name
if not found or (string.sub(found, 1, 1) == '=' and found ~= final) then
  return answer(false)
end
call('HSET', key, request.pod, final)
return answer(true)
