-- Tie a booking to the object that now exists.
--
-- KEYS[1]  {fairslice}:meta
-- ARGV[1]  {id, namespace, kind, name, object, uid}
-- Answers  true and the booking's two lines; false if there is no such booking for this object

local refused = refusal(true)
if refused then
  return answer(refused)
end
local b = find(request.id)
if not b or b.live.linger then
  return answer(false)
end
local ref = b.fixed.ref
if ref.namespace ~= request.namespace or ref.kind ~= request.kind then
  return answer(false)
end
local name, uid = b.live.name or '', b.live.uid or ''
if name ~= '' and name ~= request.name then
  return answer(false)
end
if b.live.bound and uid ~= '' and uid ~= request.uid then
  return answer(false)
end
if not b.live.bound or uid ~= request.uid or name ~= request.name then
  change(b, evolve(b, {
    bound = true, expires = false, name = request.name, object = request.object, uid = request.uid,
  }))
  commit()
end
return { cjson.encode(true), call('HGET', BOOKINGS, b.id) }
