-- Count a pod against a released workload's booking.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, owner_uid, team, pod, now, expires, units, above}
-- Answers  {accepted, cause, size, pod}, and the booking's lines if accepted
--
-- A pod of a size counts as so many; its stamp ends in `x` and the size.

local refused = refusal(true)
if refused then
  return answer(refused)
end
local function refuse(cause)
  return answer({ accepted = false, cause = cause })
end

local b = read(request.id)
if not b or b.live.linger then
  return refuse('gone')
end
if b.fixed.team ~= request.team then
  return refuse('team')
end
local uid, descends = b.live.uid or '', false
for _, kind in ipairs(request.above or {}) do
  descends = descends or kind == b.fixed.ref.kind
end
if not descends and uid ~= '' and request.owner_uid ~= '' and uid ~= request.owner_uid then
  return refuse('owner')
end
if not holding(b) or b.live.state == 'Preempted' then
  return refuse('state')
end

local per, sizes, size = 0, b.fixed.sizes, 1
for _, units in pairs(option_of(b).units) do
  per = per + units
end
if (request.units or 0) > 0 and per > 0 then
  size = request.units / per
end
local fits = not sizes and size == 1
for _, known in ipairs(sizes or {}) do
  fits = fits or known == size
end
if not fits then
  return refuse('size')
end
local pod = request.pod
if size > 1 then
  pod = pod .. 'x' .. string.format('%d', size)
end

-- Stamp → the time it expires; once the pod exists: '=', its uid, its name.
local key = prefix .. 'pods:' .. b.id
local found = call('HGET', key, pod)
local lapsed = {}
if not found and (sizes or call('HLEN', key) >= b.live.pods) then
  local stamps = call('HGETALL', key)
  local now, standing = tonumber(request.now), 0
  for i = 1, #stamps, 2 do
    local expires = tonumber(stamps[i + 1])
    if expires and expires <= now then
      lapsed[#lapsed + 1] = stamps[i]
    else
      standing = standing + tonumber(string.match(stamps[i], 'x(%d+)$') or '1')
    end
  end
  if standing + size > b.live.pods then
    return refuse('count')
  end
end

for _, stamp in ipairs(lapsed) do
  call('HDEL', key, stamp)
end
if not found or string.sub(found, 1, 1) ~= '=' then
  call('HSET', key, pod, request.expires)
  call('SADD', REGISTRY, key)
end
return { cjson.encode({ accepted = true, cause = '', size = size, pod = pod }), format(b) }
