-- Tie a booking to the object that now exists. What is held stays as it is.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, namespace, kind, name, object, uid}
-- Answers  true and the booking's lines; false if there is no such booking for this object

local refused = refusal(true)
if refused then
  return answer(refused)
end
local raw = call('HGET', BOOKINGS, request.id)
local b = raw and parse(request.id, raw)
if not b or b.live.linger then
  return answer(false)
end
local live, ref = b.live, b.fixed.ref
if ref.namespace ~= request.namespace or ref.kind ~= request.kind then
  return answer(false)
end
local name, uid = live.name or '', live.uid or ''
if name ~= '' and name ~= request.name then
  return answer(false)
end
if live.bound and uid ~= '' and uid ~= request.uid then
  return answer(false)
end
if live.bound and uid == request.uid and name == request.name then
  return { 'true', raw }
end

if live.expires and not live.bound then
  local tentative = prefix .. 'tentative:' .. b.fixed.team
  call('ZREM', prefix .. 'deadlines', b.id)
  call('ZREM', tentative, b.id)
  if call('EXISTS', tentative) == 0 then
    call('SREM', REGISTRY, tentative)
  end
  if live.object then
    call('HDEL', prefix .. 'objects', live.object)
  end
end
live.bound, live.expires = true, nil
live.name, live.object, live.uid = request.name, request.object, request.uid
local stand = stand_of(b)
if stand then
  for _, option in ipairs(b.fixed.options) do
    for _, line in ipairs(lines_of(option)) do
      call('ZADD', prefix .. 'waiting:' .. line, stand, b.id)
      call('SADD', REGISTRY, prefix .. 'waiting:' .. line)
    end
  end
end
raw = format(b)
call('HSET', BOOKINGS, b.id, raw)
call('XADD', LOG, 'MAXLEN', '~', LOG_LENGTH, '*', 'id', b.id)
return { 'true', raw }
