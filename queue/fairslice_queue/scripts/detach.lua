-- Let an attached pod go: it ended.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {epoch, id, pod}
-- Answers  whether it was attached

local refused = refusal(true)
if refused then
  return answer(refused)
end
local key = prefix .. 'pods:' .. request.id
local gone = call('HDEL', key, request.pod) == 1
if gone and call('EXISTS', key) == 0 then
  call('SREM', REGISTRY, key)
end
return answer(gone)
