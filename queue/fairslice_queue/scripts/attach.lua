-- Count a pod against a released workload's booking.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, owner_uid, team, pod, now, expires}
-- Answers  {accepted, cause}, and the booking's two lines if accepted

local refused = refusal(true)
if refused then
  return answer(refused)
end
local function refuse(cause)
  return answer({ accepted = false, cause = cause })
end

local b = find(request.id)
if not b or b.live.linger then
  return refuse('gone')
end
if b.fixed.team ~= request.team then
  return refuse('team')
end
local uid = b.live.uid or ''
if uid ~= '' and request.owner_uid ~= '' and uid ~= request.owner_uid then
  return refuse('owner')
end
if not holding(b) or b.live.state == 'Preempted' then
  return refuse('state')
end

-- Stamp → the time it expires; once the pod exists: '=', its uid, its name.
local key = prefix .. 'pods:' .. b.id
local found = call('HGET', key, request.pod)
local lapsed = {}
if not found and call('HLEN', key) >= b.live.pods then
  local stamps = call('HGETALL', key)
  local now, standing = tonumber(request.now), 0
  for i = 1, #stamps, 2 do
    local expires = tonumber(stamps[i + 1])
    if expires and expires <= now then
      lapsed[#lapsed + 1] = stamps[i]
    else
      standing = standing + 1
    end
  end
  if standing >= b.live.pods then
    return refuse('count')
  end
end

for _, stamp in ipairs(lapsed) do
  call('HDEL', key, stamp)
end
if not found or string.sub(found, 1, 1) ~= '=' then
  call('HSET', key, request.pod, request.expires)
  call('SADD', REGISTRY, key)
end
return { cjson.encode({ accepted = true, cause = '' }), format(b) }
